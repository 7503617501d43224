"""Price candidates in several processes: the table of 65,536 ranks alone may take a processor a second or two."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from .networks.network import Network
from .survey import Candidate, Price, price, ready

_MANY = 4096
"""From so many ranks on, several processes are worth their start."""


def prices(
    some: Iterable[Candidate],
    make: Callable[[], Network],
    nbytes: float,
    *,
    late: Mapping[int, float] | None = None,
    segment_bytes: int = 0,
    processes: int = 0,
) -> Iterator[Price]:
    """Price candidates, as they come; those that are left out are passed over.

    make: the network; several processes each call it, so it must be a function that can be pickled. processes: how
    many; 0: as many as this process may use processors, and one where there are few ranks.
    """
    able = (one for one in some if not one.why_not)
    network = make()
    processes = processes or (len(os.sched_getaffinity(0)) if network.ranks >= _MANY else 1)
    if processes == 1:
        for one in able:
            yield _price(one, network, nbytes, late, segment_bytes)
        return
    # Not forked: this process may have threads.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin, initargs=(make,)) as pool:
        waiting: list[Future[Price]] = []
        try:
            waiting += (pool.submit(_work, one, nbytes, late, segment_bytes) for one in able)
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_network: Network
"""Of a process that works for `prices`."""


def _begin(make: Callable[[], Network]) -> None:
    global _network  # noqa: PLW0603  a process is one worker
    gc.disable()  # of all that a table is made of, nothing is garbage, and looking takes a third of the time
    _network = make()


def _work(one: Candidate, nbytes: float, late: Mapping[int, float] | None, segment_bytes: int) -> Price:
    return _price(one, _network, nbytes, late, segment_bytes)


def _price(
    one: Candidate, network: Network, nbytes: float, late: Mapping[int, float] | None, segment_bytes: int
) -> Price:
    return price(ready(one, network), network, nbytes, late=late, segment_bytes=segment_bytes)
