"""What a rank does now, and its stacks, as a text for ranks of other hosts."""

import json
from collections.abc import Sequence

from ...observe.live.ask_stacks import Answer, ProcessStatus, ask_for_stacks, process_status
from .wire import compressed, decompressed

_PATIENCE_S = 0.05  # a sentinel does nothing else meanwhile; who asks again gets an answer that comes later
_MOST_BYTES = 30_000


def sight(pid: int, ticks: int, number: int) -> str:
    """What a process does, and its stacks; see `ask_for_stacks`."""
    status, answer = process_status(pid), ask_for_stacks(pid, ticks, number, _PATIENCE_S)
    return compressed(json.dumps([status.state, status.tracer, answer.silent, _bounded(answer.threads)]).encode())


def _bounded(threads: Sequence[Sequence[str]]) -> list[list[str]]:
    """The first threads, and their innermost frames."""
    left, kept = _MOST_BYTES, list[list[str]]()
    for thread in threads:
        kept.append([])
        for line in thread:
            left -= len(json.dumps(line)) + 2
            if left < 0:
                return kept
            kept[-1].append(line)
    return kept


def read_sight(text: str) -> tuple[ProcessStatus, Answer]:
    """What `sight` has found. Raises ValueError."""
    match json.loads(decompressed(text, 2 * _MOST_BYTES)):
        case [str(state), int(tracer), str(silent), [*threads]]:
            return ProcessStatus(state, tracer), Answer([[*map(str, thread)] for thread in threads], silent)
    raise ValueError("no sight")
