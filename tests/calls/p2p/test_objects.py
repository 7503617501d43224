"""Lists of objects from rank to rank, and messages from a rank to itself."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_each_new_world
from tests.support.values import values
from tests.support.waiting import until
from unisono import WaitTimeout
from unisono.base.config import Config
from unisono.calls import p2p
from unisono.ranks.failures import stall


@pytest.mark.ranks(1, 3, hosts="2+1")
def test_objects_pass_beside_equal_tags() -> None:
    me, p = unisono.get_rank(), unisono.get_world_size()
    to, by = (me + 1) % p, (me - 1) % p
    mine = [{"rank": me, "weights": torch.full((300_000,), float(me))}, (1, "two", None)]
    unisono.send_object_list(mine, to, tag=4)
    unisono.send(torch.tensor([me]), to, tag=4)
    unisono.send_object_list(["other tag", me], to)
    got: list[Any] = [None, None]
    assert unisono.recv_object_list(got, by) == by
    assert got == ["other tag", by]
    tensor = torch.zeros(1, dtype=torch.int64)
    assert unisono.recv(tensor, by, tag=4) == by
    assert tensor.item() == by
    assert unisono.recv_object_list(got, tag=4) == by
    assert got[0]["rank"] == by
    assert torch.equal(got[0]["weights"], torch.full((300_000,), float(by)))
    assert got[1] == (1, "two", None)


@pytest.mark.ranks(2, hosts="2x1")
def test_wrong_object_lists_are_refused() -> None:
    me = unisono.get_rank()
    with pytest.raises(unisono.DTypeError, match="Fraction"):
        unisono.send_object_list([Fraction(1, 3)], 1 - me)
    with pytest.raises(unisono.DTypeError, match="object_list: got tuple, expected a list"):
        unisono.send_object_list((1, 2), 1 - me)
    unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
    got: list[Any] = [None]
    with pytest.raises(unisono.ArgumentError, match="pickle"):
        unisono.recv_object_list(got, 1 - me)
    assert got == [None]
    unisono.send_object_list([Fraction(1, 3)], 1 - me, pickle=True)
    unisono.recv_object_list(got, 1 - me, pickle=True)
    assert got == [Fraction(1, 3)]
    unisono.send_object_list([1, 2], 1 - me)
    with pytest.raises(unisono.ArgumentError, match=r"got 1 places, expected 2, the number of objects from rank \d"):
        unisono.recv_object_list(got, 1 - me)


@in_each_new_world(2)
def test_message_to_oneself_after_all_others() -> None:
    if unisono.get_rank() == 0:
        late = p2p.irecv(torch.empty(3), tag=4)
        until(lambda: unisono.init().liveness.gone(1))
        time.sleep(0.3)  # the thread has looked at its peers
        assert not late.is_completed()
        p2p.send(values(3, 0), 0, tag=4)
        assert torch.equal(late.result(), values(3, 0))


WAITS_S = 0.2
ALONE = "Only this rank itself can send that message: call isend() before, or send() in another thread."


def waits(wait: Callable[[], object], call: str, rank: int) -> str:
    """What a wait for a message from oneself says on standard error. It ends with a WaitTimeout."""
    said: list[str] = []
    with patch.object(stall, "tell", said.append), pytest.raises(WaitTimeout) as caught:
        wait()
    assert ALONE in str(caught.value)
    assert call in str(caught.value)
    assert (caught.value.missing, caught.value.waiting) == ((), rank)
    (warning,) = said
    return warning


def wait_in_each_way(group: unisono.Group, src: int | None) -> None:
    """Every wait for a message from oneself. Those in the background go on, and end well."""
    me, rank, given = unisono.get_rank(), group.rank, torch.empty(3)
    late = p2p.irecv(torch.empty(3), src, group, tag=7)
    (several,) = p2p.batch_isend_irecv([p2p.P2POp(p2p.irecv, torch.empty(3), rank, group, 9)])
    calls: dict[str, Callable[[], object]] = {
        f"recv(float32[3], src={src}, tag=5)": lambda: p2p.recv(given, src, group, 5, timeout_s=WAITS_S),
        f"recv_object_list(1 objects, src={src}, tag=5)": lambda: p2p.recv_object_list(
            [None], src, group, 5, timeout_s=WAITS_S
        ),
        f"irecv(float32[3], src={src}, tag=7)": lambda: late.wait(WAITS_S),
        f"irecv(float32[3], src={rank}, tag=9)": lambda: several.wait(WAITS_S),
    }
    for call, wait in calls.items():
        warning = waits(wait, call, rank)
        assert warning.startswith(f"unisono: rank {me} has waited ")
        assert warning.endswith(" for a message from itself: no other rank can send it\n")
        assert call in warning
    for work, tag in ((late, 7), (several, 9)):
        p2p.isend(values(3, me + tag), rank, group, tag).wait()
        assert torch.equal(work.result(), values(3, me + tag))


@in_each_new_world(2, config=Config(stall_warning_s=0.03))
def test_wait_for_oneself_is_told() -> None:
    me = unisono.get_rank()
    mine = next(group for group in [unisono.new_group([rank]) for rank in range(2)] if group)
    wait_in_each_way(unisono.init(), me)
    wait_in_each_way(mine, None)


@pytest.mark.ranks(2, hosts="2x1")
def test_wait_for_oneself_tells_other_tags() -> None:
    me = unisono.get_rank()
    p2p.isend(values(3, me), me, tag=31).wait()
    with pytest.raises(WaitTimeout, match=re.escape(f"{ALONE} Rank {me} has sent tag 31.")):
        p2p.recv(None, me, tag=32, timeout_s=0.0)
    p2p.recv(None, me, tag=31)


@in_each_new_world(2, config=Config(stall_warning_s=0.05))
def test_another_thread_ends_a_wait_for_oneself() -> None:
    me, told = unisono.get_rank(), threading.Event()
    with patch.object(stall, "tell", side_effect=lambda _: told.set()) as tell, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (told.wait(30), p2p.send(values(5, me), me)))
        assert torch.equal(p2p.recv(None, me), values(5, me))
    assert tell.call_count == 1


@pytest.mark.ranks(2, backend="unisono")
def test_torch_receive_alone_raises() -> None:
    mine = [dist.new_group([rank], timeout=timedelta(seconds=WAITS_S)) for rank in range(2)][dist.get_rank()]
    with pytest.raises(WaitTimeout, match="Only this rank itself can send"):
        dist.recv(torch.empty(3), None, mine)
