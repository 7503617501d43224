"""What a fresh process imports for its first call, as users start it: not what only other calls need."""

import json
import os
import platform
import sys

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place
from unisono.engine.host import warm_up
from unisono.ranks.rendezvous.identity import HOST_ID

pytestmark = pytest.mark.cold

MOST_MODULES, MOST_OVER_HOSTS = 116, 147  # each costs a process a tenth of a millisecond to a millisecond

NOT_NEEDED = (
    "calls.coalesced", "calls.codec", "calls.dispatch.blocks", "calls.p2p", "engine.mailbox.mailbox",
    "engine.mailbox.requests", "engine.make_image", "hosts.carriers.ucx", "hosts.sentinel.main",
    "hosts.sentinel.state_machine", "hosts.sentinel.wire", "integrations.torch.composed_calls",
    "observe.traces.perfetto", "observe.traces.rec", "observe.traces.trace_report",
    "ranks.launch",
    "schedule.algorithms.all_to_all", "schedule.algorithms.hierarchical",
    "schedule.algorithms.reduce", "schedule.algorithms.scan", "schedule.draw", "schedule.simulate", "tools",
)  # fmt: skip
"""The beginnings of their names, without "unisono."."""

NOT_ON_ONE_HOST = (
    "calls.dispatch.over_hosts.", "engine.mailbox", "hosts.carriers.gloo", "hosts.far", "hosts.messages",
    "hosts.sentinel", "schedule.algorithms.over_hosts", "schedule.choose.over_hosts",
)  # fmt: skip
"""The same, where all ranks are on one host."""

PROGRAM = """
import json, sys, typing
import torch
{}
ours = [module for name, module in sorted(sys.modules.items()) if name.startswith("unisono")]
kinds = [kind for module in ours for kind in vars(module).values() if isinstance(kind, type)]
tuples = [kind for kind in kinds if hasattr(kind, "_fields")]
texts = [kind.__name__ for kind in tuples if all(type(a) is typing.ForwardRef for a in kind.__annotations__.values())]
print(json.dumps([t.tolist(), sorted(sys.modules), texts]), flush=True)
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
def test_a_first_call_imports_only_what_it_needs(python: Python, way: str, hosts: int) -> None:
    warm_up()  # from then on, machine code is on disk
    there: dict[str, object] = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, port = ["-c", PROGRAM.format(CALLS[way])], free_port()
    ranks = [python(*command, **there, **place(rank, 2, port), **{HOST_ID: rank % hosts}) for rank in range(2)]
    printed = [rank.stdout.readline() for rank in ranks if rank.stdout]
    for rank in ranks:
        rank.communicate(timeout=100)
    for text in printed:
        result, modules, texts = json.loads(text)
        assert result == [3.0] * 4
        if platform.machine() == "x86_64":  # on others LLVM links the kernels
            assert not {"llvmlite", "numba"} & {*modules}
        assert not {"encodings.idna", "numpy.ctypeslib", "numpy.typing", "psutil", "secrets"} & {*modules}
        names = [name.removeprefix("unisono.") for name in modules if name.startswith("unisono")]
        assert not [name for name in names if name.startswith(NOT_NEEDED)]
        assert hosts > 1 or not [name for name in names if name.startswith(NOT_ON_ONE_HOST)]
        assert len(names) <= (MOST_MODULES if hosts == 1 else MOST_OVER_HOSTS), (len(names), names)
        # `from __future__ import annotations` makes texts of them, and typing compiles each: 0.06 ms for a NamedTuple
        assert not texts
