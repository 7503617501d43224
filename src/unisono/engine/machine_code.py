"""Machine code on disk: loaded and called without Numba, which only compiles what is not there yet.

A *unit* is one object file, `name.processor.sources.o`: code for this kind of processor, made from sources with this
checksum. LLVM loads it in a millisecond or two; importing Numba alone takes several hundred.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import llvmlite
import llvmlite.binding as llvm

from .once import once

_DIGEST_BYTES = 16
_FASTCALL = 0x80  # METH_FASTCALL of CPython
_COMPILED_S, _ASK_S = 60.0, 0.01
"""How long a process waits for another one that compiles the same code, and between two looks."""


class Unit:
    """The code of one compiled function.

    name: of the unit, and of the function that it exports. sources: the files whose content its code depends on.
    versions: what else it depends on. make: makes the object file, if there is none.
    """

    def __init__(self, name: str, sources: Iterable[Path], make: Callable[[], bytes], versions: str = "") -> None:
        self.name, self._make = name, make
        checksum = hashlib.blake2b(f"{sys.implementation.cache_tag} {llvmlite.__version__} {versions}".encode())
        for path in sorted(sources):
            checksum.update(path.read_bytes())
        self._family = f"{name}.{_processor()}."
        self._file = f"{self._family}{checksum.hexdigest()[:16]}.o"

    @property
    def on_disk(self) -> bool:
        """Whether the code is on disk."""
        return any((folder / self._file).exists() for folder in _folders())

    def address(self) -> int:
        """Load the code, and return the address of its function. Compiles it if it is not on disk, or damaged there.

        Of several processes that find nothing on disk, one compiles, and the others wait for it.
        """
        code = self._read()
        if code is None:
            folder = writable_folder()
            with _locked(None if folder is None else folder / f"{self._family}lock"):
                code = self._read()
                if code is None:
                    code = self._make()
                    if folder is not None:
                        self._keep(folder, code)
        return _load(self.name, code)

    def _read(self) -> bytes | None:
        """The code on disk; None if there is none, or it is damaged: LLVM would end the process."""
        for folder in _folders():
            with suppress(OSError):
                content = (folder / self._file).read_bytes()
                code = content[_DIGEST_BYTES:]
                if content[:_DIGEST_BYTES] == _digest(code):
                    return code
        return None

    def _keep(self, folder: Path, code: bytes) -> None:
        """Write the code to disk, in place of that of other sources; without room for it, do nothing."""
        with suppress(OSError):
            for old in folder.glob(f"{self._family}*.o"):
                old.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=self._file, delete=False) as file:
                file.write(_digest(code) + code)
            new = Path(file.name)
            new.chmod(0o644)
            new.replace(folder / self._file)


def entry_point(unit: Unit) -> Callable[..., int]:
    """Load a unit whose function has CPython's fast calling convention, as a Python function."""
    method = _Method(unit.name.encode(), unit.address(), _FASTCALL, None)
    _loaded.append(method)
    function: Callable[..., int] = _new_function(ctypes.byref(method), None, None)
    return function


def object_code(module: Any) -> bytes:
    """Optimise an LLVM module for this processor, and return its object file. It keeps what is not internal."""
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def symbol(name: str) -> str:
    """The name in its object file of the function of a unit."""
    return f"unisono_{name.replace('.', '_')}"


@once
def _target_machine() -> Any:
    """LLVM's description of this processor, with all that it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3,
        reloc="pic", codemodel="jitdefault", jit=True,
    )  # fmt: skip


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

_loaded: list[object] = []
"""What must live as long as the loaded code."""

_numbers = itertools.count()
"""Of the libraries: the linker refuses a second one of the same name."""


@cache
def _processor() -> str:
    """The kind of processor, as a part of a file's name."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_host_cpu_name()}-{hashlib.blake2b(features.encode(), digest_size=4).hexdigest()}"


@once
def _linker() -> Any:
    return llvm.create_lljit_compiler(_target_machine())


def _load(name: str, code: bytes) -> int:
    """Link the code into this process; the address of the function of this name."""
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol(name))
    linked = library.link(_linker(), f"{name} {next(_numbers)}")
    _loaded.append(linked)
    return int(linked[symbol(name)])


def _digest(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()


def _folders() -> list[Path]:
    """Where code may be: UNISONO_CACHE_DIR, or else beside this file, or with the user's other caches."""
    if chosen := os.environ.get("UNISONO_CACHE_DIR"):
        return [Path(chosen)]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(__file__).parent / "__pycache__", Path(caches) / "unisono"]


def writable_folder() -> Path | None:
    """Where code is kept: the first folder for it that can be written to; None where there is none."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


@contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    """Let one process at a time in, where the file system has locks. A process that has waited for long goes in, too:
    the one that holds the lock may be stopped, and two that compile the same do each other no harm.
    """
    with ExitStack() as held:
        if path is not None:
            with suppress(OSError):
                file = held.enter_context(path.open("w"))
                until = time.monotonic() + _COMPILED_S
                while not _try_lock(file) and time.monotonic() < until:
                    time.sleep(_ASK_S)
                # Not by closing alone: a process that was forked meanwhile has the file open, too.
                held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
