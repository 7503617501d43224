"""What simulators read: GOAL by its grammar, Chakra's traces by their schema."""

import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.each import each
from unisono.base.link import Link
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import exported, write
from unisono.schedule.simulate import Hardware, Network, messages, play

LINK = Link(20e-6, 1e9)  # a nanosecond a byte
LINE = re.compile(
    r"(?P<label>[a-zA-Z]\w*)(?: requires (?P<before>[a-zA-Z]\w*)|: (?P<way>calc|send|recv) (?P<size>\d+)"
    r"(?:b (?P<to>to|from) (?P<peer>\d+) tag (?P<tag>\d+))?)"
)
"""The lines of a rank in GOAL as `txt2bin.re` of LogGOPSim reads them, as far as we write them."""


class Op(NamedTuple):
    way: str
    size: int
    key: tuple[int, ...]
    needs: list[str]


def parse(text: str) -> list[dict[str, Op]]:
    """The operations of all ranks by label. Fails for what is not GOAL. key: sender, receiver, tag."""
    head, *parts = re.split(r"^rank (\d+) {\n(.*?)^}\n", text, flags=re.MULTILINE | re.DOTALL)
    ranks: list[dict[str, Op]] = []
    for rank, body, between in zip(*(parts[k::3] for k in range(3)), strict=True):
        assert (int(rank), between.strip()) == (len(ranks), "")
        ranks.append({})
        for found in map(LINE.fullmatch, body.splitlines()):
            assert found, body
            if found["before"]:
                assert found["before"] in ranks[-1]
                ranks[-1][found["label"]].needs.append(found["before"])
                continue
            assert found["label"] not in ranks[-1]
            assert found["to"] == {"calc": None, "send": "to", "recv": "from"}[found["way"]]
            ends = [int(rank), int(found["peer"] or -1)][:: -1 if found["way"] == "recv" else 1]
            key = (*ends, int(found["tag"] or -1))
            ranks[-1][found["label"]] = Op(found["way"], int(found["size"]), key, [])
    assert head.split() == ["num_ranks", f"{len(ranks)}"]
    return ranks


def makespan(ranks: list[dict[str, Op]], latency: int) -> float:
    """When the last operation ends, in nanoseconds, if no rank has two messages at once on its link."""
    sends = {op.key: (rank, label) for rank, ops in enumerate(ranks) for label, op in ops.items() if op.way == "send"}
    before = {(r, label): [(r, need) for need in op.needs] for r, ops in enumerate(ranks) for label, op in ops.items()}
    for rank, ops in enumerate(ranks):
        for label, op in ops.items():
            if op.way == "recv":
                source, sent = sends.pop(op.key)
                assert ranks[source][sent].size == op.size
                before[rank, label].append((source, sent))
    assert not sends
    ends: dict[tuple[int, str], float] = {}
    for rank, label in TopologicalSorter(before).static_order():
        op = ranks[rank][label]
        came = max((ends[one] + latency * (one[0] != rank) for one in before[rank, label]), default=0.0)
        ends[rank, label] = came + op.size * (op.way != "recv")
    return max(ends.values(), default=0.0)


BUSY = (
    "all_reduce.ring", "all_reduce.recursive_doubling", "all_reduce.rabenseifner", "all_reduce.circulant",
    "all_reduce.swing", "all_reduce.bruck", "all_gather.ring", "all_gather.bruck", "all_gather.recursive_doubling",
    "reduce_scatter.ring", "reduce_scatter.circulant", "broadcast.binomial", "all_to_all.bruck",
    "all_to_all.pairwise", "barrier.dissemination",
)  # fmt: skip
"""Algorithms in which messages have their links for themselves."""


@each("name", CATALOGUE)
def test_goal_takes_as_long_as_our_clock(name: str) -> None:
    """If messages have their links for themselves. Of all algorithms, messages match and operations end."""
    for ranks in filter(CATALOGUE[name].allows, (1, 2, 3, 4, 5, 8)):
        table = CATALOGUE[name].schedule(ranks)
        nbytes = 0 if table.collective == "barrier" else 1 << 20
        ops = parse(exported(table, "goal", nbytes, LINK)[""].decode())
        theirs = makespan(ops, 20_000)
        if name in BUSY:
            network = Network(Hosts.parse(f"{ranks}x1"), Hardware(LINK, message_share=0.0, eager_bytes=1 << 40))
            ours = float(play(messages(table), network, nbytes).ready.max()) * 1e9
            assert theirs == pytest.approx(ours, rel=1e-4, abs=len(max(ops, key=len))), ranks


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
        assert key & 7 in (0, 2)
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
    names = {1: "id", 2: "name", 3: "type", 7: "duration_micros"}
    found = []
    for node in rest:
        one: dict[str, Any] = {"deps": []}
        for field, value in node:
            if field == 10:
                (_, name), (kind, number) = fields(value)
                assert kind in (7, 9, 13, 27)
                one[name.decode()] = number
            elif field == 5:
                at = 0
                while at < len(value):
                    dep, at = varint(value, at)
                    one["deps"].append(dep)
            else:
                one[names[field]] = value
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
