"""Atomic words in shared memory, and the instructions that a waiting loop needs. For Python code,
`engine.memory_order` orders memory.

A rank that reads a word with an acquire load sees all that the writer stored before its release store of the word. LLVM
may move plain loads out of a loop, but not atomic ones.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_CLOCK_MONOTONIC = 1
_POLLIN = 1
_DLTENSOR_WORDS = 6

clear_error = types.ExternalFunction("PyErr_Clear", types.void())
save_thread = types.ExternalFunction("PyEval_SaveThread", types.intp())
restore_thread = types.ExternalFunction("PyEval_RestoreThread", types.void(types.intp))
memcpy = types.ExternalFunction("memcpy", types.voidptr(types.intp, types.intp, types.intp))
sched_yield = types.ExternalFunction("sched_yield", types.int32())
prctl = types.ExternalFunction("prctl", types.int32(types.int32, *[types.intp] * 4))
process_vm_readv = types.ExternalFunction("process_vm_readv", types.intp(types.int32, *[types.intp] * 5))
process_vm_writev = types.ExternalFunction("process_vm_writev", types.intp(types.int32, *[types.intp] * 5))
syscall = types.ExternalFunction("syscall", types.intp(*[types.intp] * 7))
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


def _load(bits: int, order: str = "") -> Any:
    """An intrinsic (address) that loads a word of so many bits. order: "" for a plain load."""

    def read(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            word = builder.load_atomic(pointer, ordering=order, align=bits // 8) if order else builder.load(pointer)
            return builder.zext(word, _I64)

        return types.int64(types.intp), generate

    return intrinsic(read)


def _store(bits: int, order: str = "") -> Any:
    """An intrinsic (address, value) that stores a word of so many bits. order: "" for a plain store."""

    def write(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            word = builder.trunc(args[1], ir.IntType(bits))
            if order:
                builder.store_atomic(word, pointer, ordering=order, align=bits // 8)
            else:
                builder.store(word, pointer)
            return context.get_dummy_value()

        return types.void(types.intp, types.int64), generate

    return intrinsic(write)


def _rmw(what: str, bits: int) -> Any:
    """An intrinsic (address, value) that changes a word as one step, and returns what was there before."""

    def change(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            before = builder.atomic_rmw(what, pointer, builder.trunc(args[1], ir.IntType(bits)), "seq_cst")
            return builder.zext(before, _I64)

        return types.int64(types.intp, types.int64), generate

    return intrinsic(change)


load = _load(64)
"""Load the word at an address that only this process writes."""
store = _store(64)
"""Store a word that only this process reads, or that a later release store publishes."""
load_acquire = _load(64, "acquire")
"""Load the word that another process publishes with store_release."""
store_release = _store(64, "release")
"""Store a word, and so publish all that this process has written before."""
load_half = _load(32, "acquire")
"""Load the 32-bit half of a word; as `load_acquire`."""
store_half = _store(32, "release")
"""Store the 32-bit half of a word; as `store_release`."""
add_half = _rmw("add", 32)
"""Add to the 32-bit half of a word, as one step, which is a load_half and a store_half, too."""
add = _rmw("add", 64)
swap = _rmw("xchg", 64)


@intrinsic
def acquire_fence(typing: Any) -> Any:
    """Keep loads in front of this place in front of all loads and stores behind it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acquire")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def signal_fence(typing: Any) -> Any:
    """Keep the compiler from moving loads and stores across this place. Costs the processor nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst", targetscope="singlethread")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def futex_wait(typing: Any, number: Any, address: Any, expected: Any, limit_ns: Any) -> Any:
    """Sleep while the word at an address is `expected`, until it is woken, but no longer than limit_ns nanoseconds.

    number: the number of the system call. The word is 32 bits wide. Every process that maps it can wake the sleeper.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, address, expected, limit = args
        words = cgutils.alloca_once(builder, _I64, size=2)
        second = ir.Constant(_I64, 1_000_000_000)
        builder.store(builder.sdiv(limit, second), words)
        builder.store(builder.srem(limit, second), builder.gep(words, [ir.Constant(_I32, 1)]))
        call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, [_I64] * 7), "syscall")
        nothing = ir.Constant(_I64, 0)
        limits = builder.ptrtoint(words, _I64)
        return builder.call(call, [number, address, nothing, expected, limits, nothing, nothing])

    return types.int64(*[types.int64] * 4), generate


@intrinsic
def fetch_line(typing: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to be written soon. It changes no memory, and waits for nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_write, keep, data = (ir.Constant(_I32, k) for k in (1, 3, 1))
        builder.call(prefetch, [pointer, to_write, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that this is a spinning loop."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("aarch64", "arm64")):
            hint = ir.FunctionType(ir.VoidType(), [_I32])
            builder.call(
                cgutils.get_or_insert_function(builder.module, hint, "llvm.aarch64.hint"), [ir.Constant(_I32, 1)]
            )
        else:
            none = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, none, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def cycles(typing: Any) -> Any:
    """Read the processor's cycle counter."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        none = ir.FunctionType(_I64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, none, "llvm.readcyclecounter"), [])

    return types.int64(), generate


@intrinsic
def errno(typing: Any) -> Any:
    """Why the last system call of this thread has failed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32.as_pointer(), [])
        place = builder.call(cgutils.get_or_insert_function(builder.module, kind, "__errno_location"), [])
        return builder.sext(builder.load(place), _I64)

    return types.int64(), generate


@intrinsic
def now_ns(typing: Any) -> Any:
    """Read the monotonic clock, which all processes of a host share, in nanoseconds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32, _I64.as_pointer()])
        clock_gettime = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        words = cgutils.alloca_once(builder, _I64, size=2)
        builder.call(clock_gettime, [ir.Constant(_I32, _CLOCK_MONOTONIC), words])
        seconds = builder.load(words)
        nanoseconds = builder.load(builder.gep(words, [ir.Constant(_I32, 1)]))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), nanoseconds)

    return types.int64(), generate


@intrinsic
def call_combine(typing: Any, function: Any, outs: Any, nout: Any, ins: Any, nin: Any, count: Any, ranks: Any) -> Any:
    """Call the combine kernel (see `reducers`) at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


@intrinsic
def export(typing: Any, function: Any, tensor: Any) -> Any:
    """Describe a tensor, by the function of its library at an address: the address of a DLTensor, in the memory of the
    caller; 0 and an exception of Python if it cannot.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = builder.ptrtoint(cgutils.alloca_once(builder, _I64, size=_DLTENSOR_WORDS), _I64)
        kind = ir.FunctionType(_I32, [_I64, _I64])
        status = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], view])
        good = builder.icmp_signed("==", status, ir.Constant(_I32, 0))
        return builder.select(good, view, ir.Constant(_I64, 0))

    return types.int64(types.intp, types.intp), generate


@intrinsic
def call_transport(typing: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address, of another library, with a word; it returns an integer of 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:]), _I64)

    return types.int64(types.intp, types.intp), generate


def _call_words(count: int) -> Any:
    """The type and code of a call of the function at an address, of another library, from so many words to a word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64] * count)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(*[types.intp] * (count + 1)), generate


@intrinsic
def call_send(typing: Any, function: Any, endpoint: Any, place: Any, nbytes: Any, tag: Any, how: Any) -> Any:
    """Begin to send a message, by the function of another library at an address."""
    return _call_words(5)


@intrinsic
def call_receive(
    typing: Any, function: Any, engine: Any, place: Any, nbytes: Any, tag: Any, tag_bits: Any, how: Any
) -> Any:
    """Begin to receive a message, by the function of another library at an address."""
    return _call_words(6)


@intrinsic
def sleep_on(typing: Any, descriptor: Any, limit_ns: Any) -> Any:
    """Sleep until a descriptor has something to read, but no longer than limit_ns, which is below a second."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64.as_pointer(), _I64, _I64.as_pointer(), _I64])
        ppoll = cgutils.get_or_insert_function(builder.module, kind, "ppoll")
        asked, limit = cgutils.alloca_once(builder, _I64), cgutils.alloca_once(builder, _I64, size=2)
        builder.store(builder.or_(args[0], ir.Constant(_I64, _POLLIN << 32)), asked)
        builder.store(ir.Constant(_I64, 0), limit)
        builder.store(args[1], builder.gep(limit, [ir.Constant(_I32, 1)]))
        builder.call(ppoll, [asked, ir.Constant(_I64, 1), limit, ir.Constant(_I64, 0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate
