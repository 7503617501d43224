"""Find the plan of a call by its tensors, and run it: a call like an earlier one needs little of Python.

Torch describes a tensor by the C interface of DLPack, which it offers for such uses. The objects of these functions are
the input, and the output if it is another tensor; a barrier has none.
"""

from __future__ import annotations

from ..compile.program import NO_PLAN, EntryWord, KnownWord, StateWord
from .atomics import clear_error, export, load, restore_thread, save_thread, store
from .compiled import compiled
from .interpret import run
from .move import get, put

_HALF, _HALF_BITS = (1 << 32) - 1, 32
_CPU = 1
_DATA, _DEVICE, _DTYPE, _SHAPE, _STRIDES, _OFFSET = 0, 8, 16, 24, 32, 40
"""Where the words of a DLTensor are. The second half of _DTYPE is the dtype, the first one the number of dimensions."""
_BITS, _BITS_MASK, _LANES = 8, 0xFF, 16
"""Where a dtype has its number of bits, and how many of them an element has."""
_SHARED_IN, _SHARED_OUT = 1 << 32, 1 << 33
_SPREAD = 0x9E3779B1


@compiled
def _count(view):  # type: ignore[no-untyped-def]
    """The number of elements of a tensor on the CPU whose elements follow each other; -1 for other tensors."""
    shape, strides, count = load(view + _SHAPE), load(view + _STRIDES), 1
    if load(view + _DEVICE) & _HALF != _CPU or load(view + _DATA) == 0:
        return -1
    for k in range((load(view + _DTYPE) & _HALF) - 1, -1, -1):
        size = load(shape + 8 * k)
        if size != 1 and load(strides + 8 * k) != count:
            return -1
        count *= size
    return count


@compiled
def _nbytes(count, dtype):  # type: ignore[no-untyped-def]
    """The number of bytes of `count` elements, rounded up."""
    return (count * (dtype >> _BITS & _BITS_MASK) * (dtype >> _LANES) + 7) // 8


@compiled
def _key(table, exporter, objects, many):  # type: ignore[no-untyped-def]
    """Addresses of input and output, and the key of their entry; a negative count if they can have none.

    exporter: the address of DLPack's function, which sets an exception for what it cannot describe; 0: torch has none.
    """
    if many == 0:
        return 0, 0, 0, 0, 0
    view = export(exporter, load(objects)) if exporter != 0 else 0
    count = _count(view) if view != 0 else -1
    if count < 0:
        clear_error()
        return 0, 0, -1, 0, 0
    first, dtype = load(view + _DATA) + load(view + _OFFSET), load(view + _DTYPE) >> _HALF_BITS & _HALF
    second, count_out = first, count
    if many == 2:
        view = export(exporter, load(objects + 8))
        count_out = _count(view) if view != 0 else -1
        if count_out < 0 or load(view + _DTYPE) >> _HALF_BITS & _HALF != dtype:
            clear_error()
            return 0, 0, -1, 0, 0
        second, own = load(view + _DATA) + load(view + _OFFSET), get(table, KnownWord.OWN)
        nbytes, nbytes_out = _nbytes(count, dtype), _nbytes(count_out, dtype)
        overlap = second < first + nbytes and first < second + nbytes_out
        if overlap and (own < 0 or abs(first - second) != own * min(nbytes, nbytes_out)):
            return 0, 0, -1, 0, 0
    heap, end = get(table, KnownWord.HEAP), get(table, KnownWord.HEAP_END)
    shared_in = _SHARED_IN if heap <= first < end else 0
    shared_out = _SHARED_OUT if heap <= second < end else 0
    return first, second, count, count_out, dtype | shared_in | shared_out


@compiled
def _place(table, count, count_out, kind):  # type: ignore[no-untyped-def]
    """The address of the entry with this key, or of the free entry where it would be."""
    at, mask = (count + 3 * count_out + kind) * _SPREAD >> 16, get(table, KnownWord.MASK)
    while True:
        entry = table + 8 * (KnownWord.WORDS + EntryWord.WORDS * (at & mask))
        if get(entry, EntryWord.PLAN) == 0 or (
            get(entry, EntryWord.COUNT_IN) == count
            and get(entry, EntryWord.COUNT_OUT) == count_out
            and get(entry, EntryWord.KIND) == kind
        ):
            return entry
        at += 1


@compiled
def call(table, exporter, state, objects, many):  # type: ignore[no-untyped-def]
    """Run the plan that is known for these tensors. NO_PLAN if none is, or if they are to be checked first, or if the
    last call is unfinished.
    """
    first, second, count, count_out, kind = _key(table, exporter, objects, many)
    if count < 0:
        return NO_PLAN
    entry = _place(table, count, count_out, kind)
    plan = get(entry, EntryWord.PLAN)
    if plan == 0 or get(entry, EntryWord.TO_CHECK) or get(state, StateWord.PC) >= 0 or get(state, StateWord.OFFSET) > 0:
        return NO_PLAN
    thread = save_thread()
    status = run(plan, first, second, state)
    restore_thread(thread)
    return status


@compiled
def _note_key(words, count, count_out, kind):  # type: ignore[no-untyped-def]
    """Store a key."""
    put(words, EntryWord.COUNT_IN, count)
    put(words, EntryWord.COUNT_OUT, count_out)
    put(words, EntryWord.KIND, kind)


@compiled
def find(table, words, exporter, objects, many):  # type: ignore[no-untyped-def]
    """The address of the plan for these tensors; 0 if none is known, NO_PLAN if none can be.

    words: gets the key; 0: nothing does.
    """
    _, _, count, count_out, kind = _key(table, exporter, objects, many)
    if count < 0:
        return NO_PLAN
    if words != 0:
        _note_key(words, count, count_out, kind)
    return get(_place(table, count, count_out, kind), EntryWord.PLAN)


@compiled
def enter(table, count, count_out, kind, plan, to_check):  # type: ignore[no-untyped-def]
    """Note the plan for tensors with this key. The table must have a free entry."""
    entry = _place(table, count, count_out, kind)
    _note_key(entry, count, count_out, kind)
    put(entry, EntryWord.TO_CHECK, to_check)
    put(entry, EntryWord.PLAN, plan)
    return 0


@compiled
def look(table, exporter, objects, many):  # type: ignore[no-untyped-def]
    """Store the addresses of tensors, then their bytes; -1 in place of these where a tensor has another device or
    layout than `call` knows, or is none. Returns how many are so.
    """
    odd = 0
    for k in range(many):
        view = export(exporter, load(objects + 8 * k)) if exporter != 0 else 0
        count = _count(view) if view != 0 else -1
        if count >= 0:
            store(table + 8 * k, load(view + _DATA) + load(view + _OFFSET))
            store(table + 8 * (many + k), _nbytes(count, load(view + _DTYPE) >> _HALF_BITS & _HALF))
        else:
            clear_error()
            store(table + 8 * (many + k), -1)
            odd += 1
    return odd
