"""A fresh process makes its first call without loading Numba, when the machine code is on disk."""

import json
import os
import sys

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place
from unisono.engine.rank import warm_up
from unisono.ranks.rendezvous.identity import HOST_ID

pytestmark = pytest.mark.cold

PROGRAM = """
import json, sys
import torch
{}
print(json.dumps([t.tolist(), sorted({{"numba", "psutil"}} & {{*sys.modules}})]), flush=True)
"""

CALLS = {
    "torch": """
import torch.distributed as dist
dist.init_process_group("unisono")
t = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(t)
""",
    "own": """
import unisono
unisono.init()
t = torch.full((4,), unisono.get_rank() + 1.0)
unisono.all_reduce(t)
""",
}


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("way", CALLS)
def test_first_call_loads_no_compiler(python: Python, way: str, hosts: int) -> None:
    warm_up()  # from then on, machine code is on disk
    there: dict[str, object] = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, port = ["-c", PROGRAM.format(CALLS[way])], free_port()
    ranks = [python(*command, **there, **place(rank, 2, port), **{HOST_ID: rank % hosts}) for rank in range(2)]
    printed = [rank.stdout.readline() for rank in ranks if rank.stdout]
    for rank in ranks:
        rank.communicate(timeout=100)
    for text in printed:
        result, heavy = json.loads(text)
        assert result == [3.0] * 4
        assert {*heavy} <= ({"psutil"} if hosts > 1 else set()), "a carrier asks it for the addresses of the host"
