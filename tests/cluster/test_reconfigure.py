"""Ranks on hosts in network namespaces change their group: they are killed, and cut off, with the store they had."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.cluster import Cluster
from tests.support.member import Member, form, tell_all
from tests.support.programs import Python

pytestmark = pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="this torch cannot reconfigure groups")


def test_ranks_of_hosts_come_and_go(cluster: Callable[[str], Cluster], python: Python) -> None:
    two = cluster("2x2")

    def member(host: int, **more: Any) -> Member:
        where: dict[str, Any] = {"SPACE": two.names[host], "STORE": two.address(0), "UNISONO_HOST_ID": host}
        made = Member(python, LIMIT_S=10, **where, **more)
        assert made.handle
        return made

    server = member(0, SERVE=1)
    one, far, farther = member(0), member(1), member(1)
    members = [server, one, far, farther]
    assert form(members, 1) == [[rank, 4] for rank in range(4)]
    assert tell_all(members, "total") == [[10.0]] * 4
    newcomer = member(1)
    server.send(signal.SIGKILL)  # and with it the store of all
    assert [answer["rank"] for answer in tell_all(members[1:], "total")] == [0] * 3
    members = [far, one, farther, newcomer]
    assert form(members, 2) == [[rank, 4] for rank in range(4)]
    assert tell_all(members, "pids") == [[each.process.pid for each in members]] * 4
    farther.send(signal.SIGKILL)
    farther.process.wait()
    newcomer.send(signal.SIGKILL)
    newcomer.process.wait()
    handles = [one.handle, newcomer.handle]
    assert one.tell("form", 3, handles, 60)["rank"] == 1  # nobody else is on its host to notice
    members = [one, far]
    assert form(members, 4) == [[0, 2], [1, 2]]
    mend = two.cut(1)
    assert one.tell("form", 5, [one.handle], 20) == [0, 1]
    assert far.tell("form", 8, [far.handle], 20) == [0, 1]
    assert one.tell("form", 6, [far.handle, one.handle], 3)["missing"] == [0]
    mend()
    assert form(members, 9) == [[0, 2], [1, 2]]
    assert tell_all(members, "total") == [[3.0]] * 2
