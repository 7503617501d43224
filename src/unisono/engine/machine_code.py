"""Machine code on disk: LLVM loads it. Numba, which takes several hundred milliseconds to import, only compiles it.

A *unit* is one function: an object file for this kind of processor, kept as `name.processor.sources.code`. To import
LLVM and to link the units of a first call takes a process some 35 ms of processor time and 8 MiB of its own (AMD EPYC,
November 2026). LLVM makes no page writable and executable.
"""

import ctypes
import hashlib
import itertools
import mmap
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from ..base.errors import ArgumentError
from ..base.python import make_once
from .kept import Kept

_FASTCALL = 0x80  # METH_FASTCALL of CPython
_numbers = itertools.count()  # numbers the libraries: the linker refuses a second one of the same name

_loaded: list[object] = []  # what must live as long as the loaded code


class Unit(Kept):
    """The code of one compiled function. name: also of the function that it exports. make: makes the object file."""

    def __init__(self, name: str, sources: Iterable[Path], make: Callable[[], bytes], versions: str = "") -> None:
        kind, features = _processor()
        family = f"{name}.{kind}-{hashlib.blake2b(features.encode(), digest_size=8).hexdigest()}"
        super().__init__(family, (*sources, Path(__file__)), make, f"{_compilers()} {versions}")
        self.function = name

    def address(self) -> int:
        """Load the code, and return the address of its function. Raises ArgumentError where the system forbids it."""
        name, code = symbol(self.function), self.content()
        library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
        try:
            linked = library.link(_linker(), f"{name} {next(_numbers)}")
        except RuntimeError as error:
            if _may_run_code():
                raise
            raise ArgumentError(
                "the system forbids this process to run generated code. Allow execmem (SELinux), "
                "MemoryDenyWriteExecute=no (systemd), or mprotect with PROT_EXEC (a seccomp filter)."
            ) from error
        _loaded.append(linked)
        return int(linked[name])


def _may_run_code() -> bool:
    """May this process make a page of its memory executable?"""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    return bool(ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection) == 0)


def entry_point(unit: Unit) -> Callable[..., int]:
    """Load a unit as a Python function. Its function has CPython's fast calling convention."""
    method = _Method(unit.function.encode(), unit.address(), _FASTCALL, None)
    _loaded.append(method)
    function: Callable[..., int] = _new_function(ctypes.byref(method), None, None)
    return function


def symbol(name: str) -> str:
    """The name of a unit's function in the object file."""
    return f"unisono_{name.replace('.', '_')}"


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


def object_code(module: Any) -> bytes:
    """Optimise an LLVM module for this processor, and return its object file. It drops unused internal functions."""
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


@make_once
def _linker() -> Any:
    return llvm.create_lljit_compiler(_target_machine())


@make_once
def _target_machine() -> Any:
    """LLVM's description of this processor, with all that it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = _processor()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


@make_once
def _processor() -> tuple[str, str]:
    """The kind and the features of this processor, in LLVM's words."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@make_once
def _compilers() -> str:
    """The versions of what compiles, without importing Numba, where that is possible."""
    found = find_spec("numba")
    if found is not None and found.origin is not None:
        with suppress(OSError):
            return f"{llvmlite.__version__} {Path(found.origin).with_name('_version.py').read_text()}"
    return f"{llvmlite.__version__} {import_module('numba').__version__}"
