"""The store of rank 0: who does not reach it, or finds another program there, is told why, and in time."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from torch.distributed import HashStore

from tests.ranks.rendezvous.test_meetings import SOON_S, attend, launch
from tests.support.waiting import until
from unisono.base.errors import ArgumentError, WaitTimeout
from unisono.ranks.rendezvous import rendezvous, stores
from unisono.ranks.rendezvous.stores import open_store
from unisono.ranks.rendezvous.which_rank import Launch


def test_a_store_that_does_not_answer_ends_the_wait_in_time() -> None:
    ended = threading.Event()

    class Stopped(HashStore):  # type: ignore[misc]
        def check(self, _keys: list[str]) -> bool:
            ended.wait()
            return False

    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"has not answered for .* is stopped, or its host is cut off") as caught:
        rendezvous.meet(1, 2, Stopped(), 1.0)
    assert caught.value.missing == (0,)
    assert time.monotonic() - began < SOON_S
    ended.set()


def test_a_name_that_does_not_resolve_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_NO_WAY_S", 0.2)
    began = time.monotonic()
    for rank in range(2):
        nowhere = Launch(rank, 2, "Slurm", "", "node7.invalid", 29500)
        with pytest.raises(ArgumentError, match=r"'node7.invalid' cannot be resolved .* MASTER_ADDR.* and MASTER_PORT"):
            open_store(nowhere, 3600.0)
    assert time.monotonic() - began < SOON_S


def test_a_host_without_a_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_NO_WAY_S", 0.2)
    with pytest.raises(ArgumentError, match=r"255.255.255.255 cannot be reached .* MASTER_ADDR.* and MASTER_PORT"):
        open_store(Launch(1, 2, "Slurm", "", "255.255.255.255", 29500), 3600.0)


def test_a_program_that_is_no_store_is_told_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = attend(launch(other.getsockname()[1], 1, 2), 0.3)
    assert isinstance(error, WaitTimeout)
    assert "does not answer as rank 0's store: is it another program's?" in str(error)
    assert time.monotonic() - began < SOON_S
    until(lambda: not any(thread.name == "unisono asks a store" for thread in threading.enumerate()))
    assert not capfd.readouterr().err, "torch has printed its backtrace"
