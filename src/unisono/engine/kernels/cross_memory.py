"""Moves from process to process by system calls, which copy between private tensors ("CMA", cross memory attach).

Every byte is copied once, where staging copies it twice. A call for few bytes costs more than it saves. On an Intel
Xeon, all_reduce of private tensors among 2 ranks takes 0.8 of the time of staging at 1 MiB, 0.6 at 4 MiB and 0.7 at
16 MiB (November 2026). On AMD EPYC it takes 2 to 6 times as long, so there it is off by default.
"""

from __future__ import annotations

import numpy as np

from ..compile.program import DONE, FAILED, LINE_BYTES, REF_BYTES, ROOM, STAGE, LineWord, RefWord
from .atomics import call_combine, errno, load, memcpy, process_vm_readv, process_vm_writev, store
from .compiled import compiled

_EIO = 5
_READ, _WRITE = 0, 1
_VECTORS = 64
"""Bytes of a call's two pairs (address, length), at the beginning of the scratch memory."""


@compiled
def _is_remote(ref, me):  # type: ignore[no-untyped-def]
    """Is this a private tensor of a peer?"""
    return load(ref + 8 * RefWord.WHERE) != STAGE and load(ref + 8 * RefWord.RANK) != me


@compiled
def _transfer(writes, pid, here, there, nbytes, vectors):  # type: ignore[no-untyped-def]
    """Copy from the memory of another process (_READ), or to it (_WRITE): 0, or the errno. The system may copy a part
    only.
    """
    done = 0
    while done < nbytes:
        store(vectors, here + done)
        store(vectors + 8, nbytes - done)
        store(vectors + 16, there + done)
        store(vectors + 24, nbytes - done)
        if writes:
            copied = process_vm_writev(np.int32(pid), vectors, 1, vectors + 16, 1, 0)
        else:
            copied = process_vm_readv(np.int32(pid), vectors, 1, vectors + 16, 1, 0)
        if copied < 0:
            return errno()
        if copied == 0:
            return _EIO
        done += copied
    return 0


@compiled
def within_reach(pid, inp, out, scratch):  # type: ignore[no-untyped-def]
    """Can system calls read these tensors of this process? Not if they lie in the memory of a device: 0 or an errno."""
    error = _transfer(_READ, pid, scratch + _VECTORS, inp, 1, scratch)
    return error if error else _transfer(_READ, pid, scratch + _VECTORS, out, 1, scratch)


@compiled
def move_across(function, first, nin, nout, n, item, ins, outs, scratch, ranks, me, control):  # type: ignore[no-untyped-def]
    """Copy or combine n elements from the addresses at ins to those at outs. Some of these are in peers' tensors.

    first: the first ref. Returns DONE, or FAILED with rank and errno; then outputs may be half written.
    """
    nbytes = n * item
    fetches, own = 0, -1  # how many inputs to fetch; an output of this rank
    for k in range(nin):
        fetches += 1 if _is_remote(first + REF_BYTES * k, me) else 0
    for k in range(nout):
        own = own if _is_remote(first + REF_BYTES * (nin + k), me) else k
    table = scratch + _VECTORS  # addresses of a tile's inputs, then of its result
    fetched = table + 8 * (ranks + 16) // 64 * 64
    size = nbytes
    if nin > 1 or (fetches > 0 and own < 0):
        size = ROOM // (fetches + 1) // 128 * 128
    done = 0
    while done < nbytes:
        count = min(size, nbytes - done)
        result = load(outs + 8 * own) + done if own >= 0 else fetched + fetches * size
        free = fetched
        for k in range(nin):
            source = load(ins + 8 * k) + done
            ref = first + REF_BYTES * k
            if _is_remote(ref, me):
                rank = load(ref + 8 * RefWord.RANK)
                to = result if nin == 1 else free
                free += size
                pid = load(control + LINE_BYTES * rank + 8 * LineWord.PID)
                error = _transfer(_READ, pid, to, source, count, scratch)
                if error:
                    return FAILED | rank << 8 | error << 32
                source = to
            store(table + 8 * k, source)
        if nin > 1:
            store(table + 8 * nin, result)
            call_combine(function, table + 8 * nin, 1, table, nin, count // item, ranks)
        else:
            result = load(table)
        for k in range(nout):
            to = load(outs + 8 * k) + done
            ref = first + REF_BYTES * (nin + k)
            if _is_remote(ref, me):
                rank = load(ref + 8 * RefWord.RANK)
                pid = load(control + LINE_BYTES * rank + 8 * LineWord.PID)
                error = _transfer(_WRITE, pid, result, to, count, scratch)
                if error:
                    return FAILED | rank << 8 | error << 32
            elif to != result:
                memcpy(to, result, count)
        done += count
    return DONE
