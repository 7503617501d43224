"""A rank waits while no file descriptor is free: whatever it needs has been imported before."""

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place

SCRIPT = """
import os, resource, sys, torch, unisono
how, call, group = *sys.argv[1:], unisono.init()
unisono.barrier()
if group.rank == 1:
    sys.stdin.readline()
    if how == "dies":
        os._exit(3)
else:
    limit_s = 0.5 if how == "late" else 60.0
    call = compile(call, "the call", "eval")
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    unisono.barrier() if group.rank else eval(call)
    print("met", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""
BARRIER = "unisono.barrier(timeout_s=limit_s)"


@pytest.mark.cold
@pytest.mark.parametrize(
    ("how", "call", "outcome"),
    [
        ("comes", BARRIER, "met"),
        ("late", BARRIER, "WaitTimeout"),
        ("late", "unisono.barrier(async_op=True, timeout_s=limit_s).wait()", "WaitTimeout"),
        ("late", "group.shrink(timeout_s=limit_s)", "WaitTimeout"),
        ("dies", BARRIER, "PeerGone"),
    ],
)
def test_wait_needs_no_file_descriptor(python: Python, how: str, call: str, outcome: str) -> None:
    """The peer is late, dies, or never comes."""
    settings, port = {"UNISONO_STALL_WARNING_S": 0.1}, free_port()
    ranks = [python("-c", SCRIPT, how, call, **place(rank, 2, port), **settings) for rank in range(2)]
    assert ranks[0].stderr
    assert ranks[0].stdout
    assert ranks[1].stdin
    if "shrink" not in call:
        assert any("rank 0 has waited" in line for line in ranks[0].stderr)
    if how != "late":
        ranks[1].stdin.write("\n")
        ranks[1].stdin.flush()
    assert ranks[0].stdout.readline() == f"{outcome}\n", ranks[0].communicate(timeout=60)
