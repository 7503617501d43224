"""What simulators read: GOAL as text, Chakra's traces by their schema."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.each import each
from unisono.base.link import Link
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import exported, write

LINK = Link(20e-6, 1e9)  # a nanosecond a byte

RING = """num_ranks 2

rank 0 {
l0: send 500b to 1 tag 0
l1: recv 500b from 1 tag 0
l2: calc 50
l2 requires l1
j3: calc 0
j3 requires l0
j3 requires l2
l3: send 500b to 1 tag 1
l3 requires j3
l4: recv 500b from 1 tag 1
l4 requires j3
}
"""
"""The first of two ranks, in the grammar of `txt2bin.re` of LogGOPSim. The second round needs all of the first."""

COPIES = """rank 2 {
l0: calc 67
l1: recv 333b from 1 tag 1
l1 requires l0
l2: send 333b to 0 tag 1
l2 requires l0
j3: calc 0
"""
"""The last of three ranks begins with a copy."""


def test_goal_has_sends_receives_and_sums() -> None:
    ring, copies = (
        exported(CATALOGUE[name].schedule(ranks), "goal", 1000, LINK)[""].decode()
        for name, ranks in (("all_reduce.ring", 2), ("all_to_all.bruck", 3))
    )
    assert ring.startswith(RING)
    assert COPIES in copies


@each("name", CATALOGUE)
def test_each_message_of_goal_is_sent_and_received(name: str) -> None:
    for ranks in filter(CATALOGUE[name].allows, (1, 2, 5, 8)):
        text, found = exported(CATALOGUE[name].schedule(ranks), "goal", 1 << 20, LINK)[""].decode(), Counter[Any]()
        for part in text.split("\nrank ")[1:]:
            me = part.split()[0]
            for way, size, peer, tag in re.findall(r"(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)", part):
                found[size, tag, *((me, peer) if way == "send" else (peer, me))] += 1 if way == "send" else -1
            known: set[str] = set()
            for label, needs in re.findall(r"^(\w+)(?: requires (\w+)|:)", part, re.MULTILINE):
                assert not needs or needs in known
                known.add(label)
        assert not any(found.values())


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def fields(data: bytes, *, keys: bool = True) -> list[tuple[int, Any]]:
    """The fields of a message of Protocol Buffers; or the strings of a file, which have no keys."""
    out, at = list[tuple[int, Any]](), 0
    while at < len(data):
        key, at = varint(data, at) if keys else (2, at)
        value: Any
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        out.append((key >> 3, value))
    assert at == len(data)
    return out


def nodes(data: bytes) -> list[dict[str, Any]]:
    """The nodes of a trace, with their attributes."""
    head, *rest = (fields(message) for _, message in fields(data, keys=False))
    assert head == [(1, b"0.0.4")]
    names, found = {1: "id", 2: "name", 3: "type", 7: "duration_micros"}, []
    for node in rest:
        one = {names[field]: value for field, value in node if field in names}
        for (_, name), (kind, number) in (fields(value) for field, value in node if field == 10):
            assert kind in (7, 9, 13, 27)
            one[name.decode()] = number
        one["deps"] = [dep for field, value in node if field == 5 for dep in value]  # each is below 128
        found.append(one)
    return found


def test_traces_of_chakra(tmp_path: Path) -> None:
    paths = write(CATALOGUE["all_reduce.ring"].schedule(4), tmp_path / "ring", "chakra", nbytes=4000)
    assert [path.name for path in paths] == [f"ring.{rank}.et" for rank in range(4)]
    traces = [nodes(path.read_bytes()) for path in paths]
    for rank, trace in enumerate(traces):
        assert [node["id"] for node in trace] == list(range(len(trace)))
        assert all(dep < node["id"] for node in trace for dep in node["deps"])
        assert not any(node["is_cpu_op"] for node in trace)
        sends, recvs, sums = ([node for node in trace if node["type"] == kind] for kind in (5, 6, 4))
        assert (len(sends), len(recvs), len(sums)) == (6, 6, 3)
        assert all(node["comm_size"] == 1000 and node["comm_src"] == rank for node in sends)
        assert all(node["comm_dst"] == rank for node in recvs)
        assert all(node["num_ops"] == 250 and node["duration_micros"] == 1 for node in sums)
        assert [[trace[dep]["type"] for dep in node["deps"]] for node in sums] == [[6]] * 3
    sent, got = (
        {(n["comm_src"], n["comm_dst"], n["comm_tag"]) for trace in traces for n in trace if n["type"] == kind}
        for kind in (5, 6)
    )
    assert sent == got
    assert len(sent) == 4 * 6
