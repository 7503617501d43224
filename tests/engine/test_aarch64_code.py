"""The kernels' machine code for AArch64, made here by LLVM: which instructions order memory. Nothing here runs it."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from unisono.engine.kernels import atomics, compiled

TRIPLE = "aarch64-linux-gnu"
PROCESSORS = {"generic": "", "armv8.1, of AWS Graviton 2": "+lse", "with LDAPR, of Graviton 3": "+lse,+rcpc"}
"""Kinds of processors, and the features that change how LLVM orders memory."""


def lowered(text: str, features: str = "") -> tuple[str, str]:
    """A module after LLVM's passes, and its instructions, one a line; without labels, comments and data."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = re.sub(r"target datalayout = .*\n", "", text)
    text = re.sub(r'target triple = ".*"', f'target triple = "{TRIPLE}"', text)
    text = re.sub(r".*@llvm\.x86\.sse2\.pause.*\n", "", text)  # for AArch64 `pause` becomes another instruction
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu="generic", features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    lines = (line.split("//")[0] for line in machine.emit_assembly(module).splitlines())
    return str(module), "\n".join(" ".join(line.split()) for line in lines if re.match(r"\t[a-z]", line))


def assembly(text: str, features: str = "") -> str:
    return lowered(text, features)[1]


# The intrinsics, one by one

_I64 = ir.IntType(64)
INTRINSICS = {
    "load_acquire": r"lda(p)?r x",
    "store_release": r"stlr x",
    "load_half": r"lda(p)?r w",
    "store_half": r"stlr w",
    "add_half": r"ldaxr w.*stlxr w|ldaddal w",
    "add": r"ldaxr x.*stlxr w|ldaddal x",
    "swap": r"ldaxr x.*stlxr w|swpal x",
    "acquire_fence": r"dmb ish(ld)?\b",
    "pause": r"hint #1|yield",
    "cycles": r"mrs x\d+, CNTVCT_EL0",
}
"""What each must become. `cntvct_el0` is a counter that programs may read."""


class Context:
    """The part of Numba's context that intrinsics use."""

    @staticmethod
    def get_dummy_value() -> None:
        return None


def of_intrinsic(name: str) -> str:
    """A module with one function, which only has this intrinsic."""
    defined = getattr(atomics, name)._defn
    count = defined.__code__.co_argcount - 1
    signature, generate = defined(None, *[None] * count)
    module = ir.Module("one")
    module.triple = TRIPLE
    function = ir.Function(module, ir.FunctionType(_I64, [_I64] * count), "one")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(generate(Context, builder, signature, list(function.args)) or ir.Constant(_I64, 0))
    return str(module)


@pytest.mark.parametrize("features", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("name", INTRINSICS)
def test_an_intrinsic_becomes_an_instruction_that_orders_memory(name: str, features: str) -> None:
    assert re.search(INTRINSICS[name], assembly(of_intrinsic(name), features), re.DOTALL)


@pytest.mark.parametrize(
    "name", ["load_acquire", "store_release", "load_half", "store_half", "add_half", "add", "swap"]
)
def test_a_weaker_order_is_found(name: str) -> None:
    weak = re.sub(r"\b(acquire|release|seq_cst)\b", "monotonic", of_intrinsic(name))
    assert not re.search(INTRINSICS[name], assembly(weak), re.DOTALL)


# The kernels

PUBLISHES = r"stlr x.*ldap?r w.*stlr w.*(ldaxr w.*stlxr w|ldaddal w).*bl syscall"
"""Store the word; load the flag of sleepers; clear it, raise the counter, wake."""
KERNELS = {
    "waiting.publish": PUBLISHES,
    "waiting.announce": r"ldap?r w.*stlr w.*bl syscall",
    "waiting.has_changed": r"ldap?r x.*ldap?r x.*ldap?r x",
    "waiting.poll": r"ldap?r x.*ldap?r x",
    "interpret.run": r"prfm\s+pst",  # the lines that it writes next
    "interpret._progress": r"ldap?r x",
    "interpret.log_entry": r"stlr x.*CNTVCT_EL0.*stlr x.*stlr x",
    "interpret.log_end": r"CNTVCT_EL0.*stlr x",
    "interpret._gate": r"str x\d+, .*" + PUBLISHES + r".*ldap?r x.*",
    "interpret._no_rank_has_left": r"dmb ish(ld)?\b.*ldap?r x",
    "replay._meet": r"str x\d+, .*" + PUBLISHES + r".*ldap?r x.*",
    "replay._leave": PUBLISHES + r".*CNTVCT_EL0.*stlr x",
    "lanes.share": r"(ldaxr x.*stlxr w.*ldar x|swpal x.*swpal x.*ldap?r x).*stlr x",
    "lanes.help_lanes": r"ldap?r x.*(ldaxr x.*stlxr w|ldaddal x)",
    "ring.write": r"ldap?r x.*bl memcpy.*stlr x.*ldap?r x",
    "ring.read_header": r"ldap?r x.*stlr x",
    "ring.read_payload": r"ldap?r x.*bl memcpy.*stlr x",
}
"""The instructions that each must have, in this order; see the functions."""


def module_of(function: Any) -> str:
    """The LLVM module of a function that `compiled` has decorated, as Numba makes it."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "object_code", lambda module: made.append(str(module)) or b"")
        compiled.object_file("some.function", function)
    return made[0]


def changed(function: Any, others: Mapping[str, Any]) -> Any:
    """A function of a kernel in which these names, there and in all functions that it calls, have other values."""
    names = {name: value for name, value in function.py_func.__globals__.items() if hasattr(value, "py_func")}
    used = {name for name in _names(function.py_func) if name in names and name not in others}
    inner = {name: changed(names[name], others) for name in used}
    made = FunctionType(function.py_func.__code__, {**function.py_func.__globals__, **inner, **others})
    made.__module__ = function.py_func.__module__
    return compiled.compiled(made)


def _names(function: Callable[..., object]) -> Iterator[str]:
    yield from function.__code__.co_names


def kernel(name: str) -> Any:
    file, function = name.split(".")
    return getattr(import_module(f"unisono.engine.kernels.{file}"), function)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_orders_its_loads_and_stores(name: str) -> None:
    module = module_of(kernel(name))
    for features in PROCESSORS.values():
        assert re.search(KERNELS[name], assembly(module, features), re.DOTALL), features


WEAKER = {"store_release": atomics.store, "load_acquire": atomics.load, "acquire_fence": atomics.signal_fence}
MUTANTS = [
    ("waiting.publish", "store_release"), ("waiting.has_changed", "load_acquire"), ("waiting.poll", "load_acquire"),
    ("interpret._progress", "load_acquire"), ("interpret.log_entry", "store_release"),
    ("interpret.log_end", "store_release"),
    ("interpret._gate", "store_release"), ("replay._meet", "store_release"), ("replay._meet", "load_acquire"),
    ("replay._leave", "store_release"),
    ("interpret._gate", "load_acquire"), ("interpret._no_rank_has_left", "load_acquire"),
    ("interpret._no_rank_has_left", "acquire_fence"), ("ring.write", "store_release"), ("ring.write", "load_acquire"),
    ("ring.read_header", "load_acquire"), ("ring.read_header", "store_release"),
    ("ring.read_payload", "load_acquire"), ("ring.read_payload", "store_release"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "order"), MUTANTS)
def test_a_kernel_with_a_weaker_order_is_found(name: str, order: str) -> None:
    weak = changed(kernel(name), {order: WEAKER[order]})
    assert not re.search(KERNELS[name], assembly(module_of(weak)), re.DOTALL)


def test_llvm_keeps_every_order_of_the_whole_interpreter() -> None:
    text, code = lowered(module_of(kernel("interpret.run")))
    for atomic, instruction in ((r"load atomic .* acquire", r"\bldap?r "), (r"store atomic .* release", r"\bstlr ")):
        asked, kept = len(re.findall(atomic, text)), len(re.findall(instruction, code))
        assert kept >= asked > 5
