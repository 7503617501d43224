"""torch's flight recorder: the last 2000 calls of all groups of a backend, as C++ code has made them.

It is on, unless TORCH_FR_BUFFER_SIZE is 0. A look at the status of the groups takes 30 µs, one at all calls 20 ms.
"""

import inspect
import json
import math
import sys
import threading
from typing import Any, NamedTuple

from torch._C import _distributed_c10d as c10d

from ...base.records import CallRecord
from ...engine.process.nested import user_line

IN_CPP = "from C++"
"""A word in the record of a call that C++ code has made. Its op and its root are not known."""
_DTYPES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "Float": "float32", "Double": "float64",
}  # fmt: skip
GLOO, NCCL = "gloo", "nccl"
_DUMPS = {GLOO: "_dump_fr_trace_json", NCCL: "_dump_nccl_trace_json"}
"""Backend -> the function of torch that reads its recorder. A build of torch without NCCL lacks the second one."""


class Flight(NamedTuple):
    """A call of a group.

    key: of the group, for `pending`.
    number: counts the collectives of the group; 0 for a message.
    goes_on: it has not ended.
    record: where: the line at which the thread that has made the call is now, or the main thread, if it is C++ code's.
    """

    key: str
    number: int
    goes_on: bool
    record: CallRecord


def waited_call(backend: str, group: str) -> Flight | None:
    """The first call that goes on in the group of this name, or else the last call. None: the recorder has none."""
    # Without stacks: for them torch imports torch._inductor, in this thread, while another thread may import it, too.
    mine = [entry for entry in _dump(backend, True).get("entries", ()) if entry["process_group"][0] == group]
    if not mine:
        return None
    # NCCL records each call of a coalesced one, too; the end, only of the whole, which has the same numbers.
    ended = {_numbers(entry) for entry in mine if entry["retired"]}
    entry = next((entry for entry in mine if _numbers(entry) not in ended), mine[-1])
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    frames = sys._current_frames()  # noqa: SLF001  a documented function
    frame = frames.get(int(entry.get("thread_id", 0))) or frames.get(threading.main_thread().ident or 0)
    record = CallRecord(
        entry["profiling_name"].rpartition(":")[2],
        _DTYPES.get(dtypes[0], dtypes[0].lower()) if dtypes else "",
        (math.prod(sizes[0]),) if sizes else (),
        words=IN_CPP,
        where=user_line(frame) if frame else "",
    )
    message = backend == NCCL and entry["is_p2p"]
    number = 0 if message else entry["collective_seq_id"]
    return Flight(f"{entry['pg_id']}", number, _numbers(entry) not in ended, record)


def pending(backend: str, key: str) -> tuple[int, int] | None:
    """The numbers of a group's last call, and of the last one that has ended, where they differ: calls go on.

    None: the calls have ended, or an earlier one has ended later. They are not the numbers of collectives alone.
    """
    status = _dump(backend, False).get("pg_status", {}).get(key)
    if status is None:
        return None
    last, ended = (max(0, int(status[f"last_{what}_collective"])) for what in ("enqueued", "completed"))
    return (last, ended) if last != ended else None


def _dump(backend: str, calls: bool) -> dict[str, Any]:
    dump: Any = getattr(c10d, _DUMPS.get(backend, ""), None)
    return json.loads(inspect.unwrap(dump)(calls, False)) if dump else {}


def _numbers(entry: dict[str, Any]) -> tuple[int, int]:
    return entry["collective_seq_id"], entry["p2p_seq_id"]
