"""The only file that orders memory: words that other processes see, and the instructions a waiting loop needs.

An acquire load sees everything that was written before the release store that it reads. A plain load in a loop would
be hoisted out of it; these are not.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "call_combine", "clock_gettime", "cycles", "load", "load_acquire", "memcpy", "pause", "sched_yield", "store",
    "store_release", "usleep",
]  # fmt: skip

_I64 = ir.IntType(64)

memcpy = types.ExternalFunction("memcpy", types.voidptr(types.intp, types.intp, types.intp))
sched_yield = types.ExternalFunction("sched_yield", types.int32())
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """The 64-bit word at an address that only this process writes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()))

    return types.int64(types.intp), generate


@intrinsic
def store(typing: Any, address: Any, value: Any) -> Any:
    """Put a 64-bit word where only this process looks, or where a release store will follow."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """The 64-bit word that another process publishes with store_release."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), ordering="acquire", align=8)

    return types.int64(types.intp), generate


@intrinsic
def store_release(typing: Any, address: Any, value: Any) -> Any:
    """Publish a 64-bit word, and with it everything that this process wrote before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that this is a waiting loop."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("aarch64", "arm64")):
            hint = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            builder.call(
                cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"),
                [ir.Constant(ir.IntType(32), 1)],
            )
        else:
            none = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, none, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def cycles(typing: Any) -> Any:
    """A fast clock of no particular unit."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        none = ir.FunctionType(_I64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, none, "llvm.readcyclecounter"), [])

    return types.int64(), generate


@intrinsic
def call_combine(typing: Any, function: Any, outs: Any, nout: Any, ins: Any, nin: Any, count: Any, ranks: Any) -> Any:
    """Call a combine kernel (see reducers) by its address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate
