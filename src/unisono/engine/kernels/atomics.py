"""Atomic words in shared memory, and the instructions that a waiting loop needs. For Python code,
`engine.memory_order` orders memory.

A rank that reads a word with an acquire load sees all that the writer stored before its release store of the word. LLVM
may move plain loads out of a loop, but not atomic ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
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
process_vm_readv = types.ExternalFunction("process_vm_readv", types.intp(types.int32, *[types.intp] * 5))
process_vm_writev = types.ExternalFunction("process_vm_writev", types.intp(types.int32, *[types.intp] * 5))
syscall = types.ExternalFunction("syscall", types.intp(*[types.intp] * 7))


def _intrinsic(result: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a function of integers, made of one (builder, integers) that writes its code and returns its value."""

    def register(write: Callable[..., Any]) -> Any:
        @intrinsic
        @wraps(write)
        def typed(_typing: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                value = write(builder, *values)
                return context.get_dummy_value() if result is types.void else value

            return result(*[types.int64] * len(arguments)), generate

        return typed

    return register


def _pointer(b: Any, address: Any, bits: int) -> Any:
    return b.inttoptr(address, ir.IntType(bits).as_pointer())


def _call(b: Any, name: str, result: ir.Type, *values: Any) -> Any:
    """Call a function of the C library, or one of LLVM's."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), values)


def _call_at(b: Any, address: Any, result: ir.Type, *values: Any) -> Any:
    """Call the function at an address."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return b.call(b.inttoptr(address, kind.as_pointer()), values)


def _time(b: Any, ns: Any) -> Any:
    """The address of a timespec of this many nanoseconds."""
    words, second = cgutils.alloca_once(b, _I64, size=2), ir.Constant(_I64, 1_000_000_000)
    b.store(b.sdiv(ns, second), words)
    b.store(b.srem(ns, second), b.gep(words, [ir.Constant(_I32, 1)]))
    return b.ptrtoint(words, _I64)


def _load(bits: int, order: str = "") -> Any:
    """An intrinsic (address) that loads a word of so many bits. order: "" for a plain load."""

    @_intrinsic(types.int64)
    def read(b: Any, address: Any) -> Any:
        pointer = _pointer(b, address, bits)
        return b.zext(b.load_atomic(pointer, ordering=order, align=bits // 8) if order else b.load(pointer), _I64)

    return read


def _store(bits: int, order: str = "") -> Any:
    """An intrinsic (address, value) that stores a word of so many bits. order: "" for a plain store."""

    @_intrinsic(types.void)
    def write(b: Any, address: Any, value: Any) -> None:
        word, pointer = b.trunc(value, ir.IntType(bits)), _pointer(b, address, bits)
        if order:
            b.store_atomic(word, pointer, ordering=order, align=bits // 8)
        else:
            b.store(word, pointer)

    return write


def _rmw(what: str, bits: int) -> Any:
    """An intrinsic (address, value) that changes a word as one step, and returns what was there before."""

    @_intrinsic(types.int64)
    def change(b: Any, address: Any, value: Any) -> Any:
        return b.zext(b.atomic_rmw(what, _pointer(b, address, bits), b.trunc(value, ir.IntType(bits)), "seq_cst"), _I64)

    return change


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


@_intrinsic(types.void)
def acquire_fence(b: Any) -> None:
    """Keep loads in front of this place in front of all loads and stores behind it."""
    b.fence("acquire")


@_intrinsic(types.void)
def signal_fence(b: Any) -> None:
    """Keep the compiler from moving loads and stores across this place. Costs the processor nothing."""
    b.fence("seq_cst", targetscope="singlethread")


@_intrinsic(types.int64)
def futex_wait(b: Any, number: Any, address: Any, expected: Any, limit_ns: Any) -> Any:
    """Sleep while the word at an address is `expected`, until it is woken, but no longer than limit_ns nanoseconds.

    number: the number of the system call. The word is 32 bits wide. Every process that maps it can wake the sleeper.
    """
    nothing = ir.Constant(_I64, 0)
    return _call(b, "syscall", _I64, number, address, nothing, expected, _time(b, limit_ns), nothing, nothing)


@_intrinsic(types.void)
def pause(b: Any) -> None:
    """Tell the processor that this is a spinning loop."""
    if b.module.triple.startswith(("aarch64", "arm64")):
        _call(b, "llvm.aarch64.hint", ir.VoidType(), ir.Constant(_I32, 1))
    else:
        _call(b, "llvm.x86.sse2.pause", ir.VoidType())


@_intrinsic(types.int64)
def cycles(b: Any) -> Any:
    """Read the processor's cycle counter."""
    return _call(b, "llvm.readcyclecounter", _I64)


@_intrinsic(types.int64)
def errno(b: Any) -> Any:
    """Why the last system call of this thread has failed."""
    return b.sext(b.load(_call(b, "__errno_location", _I32.as_pointer())), _I64)


@_intrinsic(types.int64)
def now_ns(b: Any) -> Any:
    """Read the monotonic clock, which all processes of a host share, in nanoseconds."""
    words = cgutils.alloca_once(b, _I64, size=2)
    _call(b, "clock_gettime", _I32, ir.Constant(_I32, _CLOCK_MONOTONIC), words)
    nanoseconds = b.load(b.gep(words, [ir.Constant(_I32, 1)]))
    return b.add(b.mul(b.load(words), ir.Constant(_I64, 1_000_000_000)), nanoseconds)


@_intrinsic(types.void)
def call_combine(b: Any, function: Any, outs: Any, nout: Any, ins: Any, nin: Any, count: Any, ranks: Any) -> None:
    """Call the combine kernel (see `reducers`) at an address."""
    _call_at(b, function, ir.VoidType(), outs, nout, ins, nin, count, ranks)


@_intrinsic(types.int64)
def export(b: Any, function: Any, tensor: Any) -> Any:
    """Describe a tensor, by the function of its library at an address: the address of a DLTensor, in the memory of the
    caller; 0 and an exception of Python if it cannot.
    """
    view = b.ptrtoint(cgutils.alloca_once(b, _I64, size=_DLTENSOR_WORDS), _I64)
    good = b.icmp_signed("==", _call_at(b, function, _I32, tensor, view), ir.Constant(_I32, 0))
    return b.select(good, view, ir.Constant(_I64, 0))


@_intrinsic(types.int64)
def call_transport(b: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address, of another library, with a word; it returns an integer of 32 bits."""
    return b.sext(_call_at(b, function, _I32, argument), _I64)


@_intrinsic(types.int64)
def call_send(b: Any, function: Any, endpoint: Any, place: Any, nbytes: Any, tag: Any, how: Any) -> Any:
    """Begin to send a message, by the function of another library at an address."""
    return _call_at(b, function, _I64, endpoint, place, nbytes, tag, how)


@_intrinsic(types.int64)
def call_receive(b: Any, function: Any, worker: Any, place: Any, nbytes: Any, tag: Any, tag_bits: Any, how: Any) -> Any:
    """Begin to receive a message, by the function of another library at an address."""
    return _call_at(b, function, _I64, worker, place, nbytes, tag, tag_bits, how)


@_intrinsic(types.void)
def sleep_on(b: Any, descriptor: Any, limit_ns: Any) -> None:
    """Sleep until a descriptor has something to read, but no longer than limit_ns nanoseconds."""
    asked = cgutils.alloca_once(b, _I64)
    b.store(b.or_(descriptor, ir.Constant(_I64, _POLLIN << 32)), asked)
    one, nothing = ir.Constant(_I64, 1), ir.Constant(_I64, 0)
    _call(b, "ppoll", _I32, asked, one, _time(b, limit_ns), nothing)
