"""barrier: no rank returns before all ranks have called it."""

from typing import Any

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..dispatch import UNKNOWN, Call, shortcut


def barrier(
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Wait until every rank of the group has called `barrier`.

    Args:
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

        def work():
            started = time.monotonic()
            time.sleep(0.1 * unisono.get_rank())
            unisono.barrier()  # all wait for rank 2
            return time.monotonic() - started > 0.15

        unisono.run(work, ranks=3)  # [True, True, True]
    """
    what = "barrier", None, 0, algorithm
    if (made := shortcut(group, what, None, None, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        call.agree()
    return call.run()
