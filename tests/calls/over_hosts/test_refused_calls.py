"""A program over hosts that catches mismatches again and again: the memory has a limit, and is given back."""

from __future__ import annotations

import re
import weakref
from random import Random
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.in_process_carrier import InProcessCarrier, Wires
from unisono.calls.dispatch.over_hosts.hosts_run import RefusedCalls
from unisono.engine.memory import arena

LONG = 300_000
"""Elements of float64: such a tensor is sent from where it is."""


def test_refused_calls_end_the_group_before_they_take_all_memory() -> None:
    """The rank whose memory is full first says so, and the other one hears it."""

    def work() -> str:
        me = unisono.get_rank()
        unisono.all_reduce(torch.ones(LONG))
        with patch.object(arena, "_available_bytes", lambda: 8 * 8 * LONG):
            for _ in range(20):
                try:
                    unisono.all_reduce(torch.ones(LONG, dtype=torch.float64), "sum" if me else "max")
                except unisono.MismatchError:
                    continue
                except (unisono.OutOfMemory, unisono.PeerFailed) as error:
                    with pytest.raises(type(error)):
                        unisono.all_reduce(torch.ones(LONG))
                    return str(error)
        return ""

    with unisono.world(2, hosts="2x1", timeout_s=60) as world:
        for said in world.run(work):
            assert re.search(r"[2-8] calls over hosts that ended with a MismatchError hold .* free on this host", said)
            assert "Let all ranks make the same calls" in said


def test_a_tensor_that_several_refused_calls_send_from_is_counted_once() -> None:
    refused, tensor = RefusedCalls(), torch.ones(100)
    for sent in ([tensor], [tensor[1:], torch.ones(3)]):
        refused.add(10)
        refused.keep(one.untyped_storage() for one in sent)
    assert refused._nbytes == 10 + 10 + tensor.nbytes + 12


def test_memory_of_refused_calls_is_given_back_when_nobody_has_the_carrier() -> None:
    carriers = [InProcessCarrier(Wires(Random(1)), rank) for rank in range(2)]
    refused = [weakref.ref(RefusedCalls.of(carrier)) for carrier in carriers]
    assert refused[0]() is RefusedCalls.of(carriers[0]) is not RefusedCalls.of(carriers[1])
    carriers.pop()
    assert refused[0]() is not None
    assert refused[1]() is None
