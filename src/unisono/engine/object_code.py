"""LLVM: optimise a module for this processor to an object file; link one into this process, where there is no image."""

import itertools
from typing import Any

import llvmlite.binding as llvm

from ..base.linux import cpuinfo
from ..base.python import once

_OTHERWISE = {
    "64bit": "lm", "bmi": "bmi1", "crc32": "sse4_2", "lzcnt": "abm", "pclmul": "pclmulqdq", "pku": "ospke",
    "prfchw": "3dnowprefetch", "rdrnd": "rdrand", "sahf": "lahf_lm", "sha": "sha_ni", "sse3": "pni",
}  # fmt: skip
"""LLVM's names of processor features, and Linux's, where they differ by more than points and underscores."""

_numbers = itertools.count()  # numbers the libraries: the linker refuses a second one of the same name

_linked: list[Any] = []  # what must live as long as the linked code


def object_code(module: Any) -> bytes:
    """Optimise an LLVM module for this processor, and return its object file. It drops unused internal functions."""
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def processor() -> str:
    """The kind and the features of this processor, in LLVM's words."""
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def link(name: str, symbol: str, code: bytes) -> int:
    """Link an object file into this process; return the address of the function with this name."""
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
    linked = library.link(_linker(), f"{name} {next(_numbers)}")
    _linked.append(linked)
    return int(linked[symbol])


@once
def _linker() -> Any:
    return llvm.create_lljit_compiler(_target_machine())


@once
def _target_machine() -> Any:
    """LLVM's description of this processor, with all that it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, reloc="pic", codemodel="jitdefault", jit=True,
    )  # fmt: skip


def _features() -> str:
    """The processor features that code may use: where the kernel lists features, as on x86-64, only these.

    The names of files with code have these features. So no processor is given code that it cannot run.
    """
    features, flags = llvm.get_host_cpu_features(), cpuinfo("flags")
    if flags:
        known = {_plain(flag) for flag in flags.split()}
        for name, there in features.items():
            features[name] = there and _plain(_OTHERWISE.get(name, name)) in known
    return str(features.flatten())


def _plain(name: str) -> str:
    return name.translate({ord(mark): None for mark in "._-"})
