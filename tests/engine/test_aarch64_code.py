"""The kernels' machine code for AArch64, made here by LLVM: which instructions order memory. Nothing here runs it."""

import re
from inspect import signature as signature_of

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from unisono.engine.kernels import atomics, compiled, interpret

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
    count = len(signature_of(defined).parameters) - 1
    signature, generate = defined(None, *[None] * count)
    module = ir.Module("one")
    module.triple = TRIPLE
    function = ir.Function(module, ir.FunctionType(_I64, [_I64] * count), "one")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(generate(Context, builder, signature, list(function.args)) or ir.Constant(_I64, 0))
    return str(module)


@pytest.mark.parametrize("features", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("name", INTRINSICS)
def test_intrinsic_orders_memory(name: str, features: str) -> None:
    assert re.search(INTRINSICS[name], lowered(of_intrinsic(name), features)[1], re.DOTALL)


def test_interpreter_keeps_orders() -> None:
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "object_code", lambda module: made.append(str(module)) or b"")
        compiled.object_file("some.function", interpret.run)
    text, code = lowered(made[0])
    for atomic, instruction in ((r"load atomic .* acquire", r"\bldap?r "), (r"store atomic .* release", r"\bstlr ")):
        asked, kept = len(re.findall(atomic, text)), len(re.findall(instruction, code))
        assert kept >= asked > 5
