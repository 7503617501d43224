"""Threads of one process that claim to be ranks are told at once."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, PrefixStore

from unisono.base.errors import ArgumentError
from unisono.integrations.torch.join_group import join


def test_ranks_as_threads_are_refused_at_once():
    store, together = HashStore(), threading.Barrier(2)

    def rank(number):
        together.wait(30)
        with pytest.raises(ArgumentError, match=f"ranks 0 and 1 are the same process .pid {os.getpid()}."):
            join(PrefixStore("group", store), number, 2, "default", 100.0)

    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))
    assert time.monotonic() - start < 50
