"""What simulators read: GOAL by its grammar and by LogGOPS' rules, Chakra's traces by their schema."""

import heapq
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.each import each
from unisono.base.errors import AlgorithmError
from unisono.base.link import Link
from unisono.schedule import ADD, COPY, OP, Hosts, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import exported, write
from unisono.schedule.simulate import Hardware, Network, messages, play

pytestmark = pytest.mark.quick

LINK = Link(20e-6, 1e9)  # a nanosecond a byte
NBYTES = 1 << 20

LINE = re.compile(
    r"|num_ranks (?P<ranks>\d+)|rank (?P<rank>\d+) {|(?P<end>})"
    r"|(?P<after>[a-zA-Z]\w*) requires (?P<before>[a-zA-Z]\w*)"
    r"|(?P<label>[a-zA-Z]\w*): (?:calc (?P<time>\d+)|(?P<way>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) "
    r"tag (?P<tag>\d+))"
)
"""The lines of GOAL as `txt2bin.re` of LogGOPSim reads them, as far as we write them."""


class Op:
    def __init__(self, found: re.Match[str]) -> None:
        self.way = found["way"] or "calc"
        self.size = int(found["time"] or found["size"])
        self.peer, self.tag = int(found["peer"] or -1), int(found["tag"] or -1)
        self.needs = list[str]()


def parse(text: str) -> list[dict[str, Op]]:
    """The operations of all ranks by label. Fails for what is not GOAL."""
    ranks: dict[int, dict[str, Op]] = {}
    count, rank = -1, -1
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        assert found, line
        if found["ranks"]:
            count = int(found["ranks"])
        elif found["rank"]:
            assert rank == -1
            rank = int(found["rank"])
            ranks[rank] = {}
        elif found["end"]:
            rank = -1
        elif found["after"]:
            assert found["before"] in ranks[rank]
            ranks[rank][found["after"]].needs.append(found["before"])
        elif found["label"]:
            assert ("to" in line.split()) == (found["way"] == "send")
            assert found["label"] not in ranks[rank]
            ranks[rank][found["label"]] = Op(found)
    assert [*ranks] == list(range(count))
    return [*ranks.values()]


def loggops(ranks: list[dict[str, Op]], latency: int, byte: float) -> float:
    """The time at which the last operation ends, by LogGOPSim's rules, with o = g = O = 0 and eager messages only."""
    cpu, out, came = ([0.0] * len(ranks) for _ in range(3))
    waits = [{label: len(op.needs) for label, op in ops.items()} for ops in ranks]
    follow: list[dict[str, list[str]]] = [defaultdict(list) for _ in ranks]
    posted, arrived = defaultdict(list), defaultdict(int)
    queue: list[tuple[float, int, int, str, Op]] = []
    order, ended = 0, 0

    def push(time: float, rank: int, label: str, op: Op) -> None:
        nonlocal order
        order += 1
        heapq.heappush(queue, (time, order, rank, label, op))

    def end(rank: int, label: str) -> None:
        nonlocal ended
        ended += 1
        for after in follow[rank][label]:
            waits[rank][after] -= 1
            if not waits[rank][after]:
                op = ranks[rank][after]
                push(max(cpu[rank], out[rank]) if op.way == "send" else cpu[rank], rank, after, op)

    for rank, ops in enumerate(ranks):
        for label, op in ops.items():
            for need in op.needs:
                follow[rank][need].append(label)
            if not op.needs:
                push(0.0, rank, label, op)
    while queue:
        time, _, rank, label, op = heapq.heappop(queue)
        if label.startswith("message "):
            key = (op.peer, rank, op.tag)
            if max(cpu[rank], came[rank]) > time:
                push(max(cpu[rank], came[rank]), rank, label, op)
                continue
            cpu[rank] = came[rank] = time + (op.size - 1) * byte
            if posted[key]:
                end(rank, posted[key].pop())
            else:
                arrived[key] += 1
        elif op.way == "recv":
            key = (op.peer, rank, op.tag)
            if arrived[key]:
                arrived[key] -= 1
                end(rank, label)
            else:
                posted[key].append(label)
        elif op.way == "calc":
            if cpu[rank] > time:
                push(cpu[rank], rank, label, op)
                continue
            cpu[rank] = time + op.size
            end(rank, label)
        elif max(cpu[rank], out[rank]) > time:
            push(max(cpu[rank], out[rank]), rank, label, op)
        else:
            out[rank] = time + (op.size - 1) * byte
            message = ranks[rank][label]
            arriving = re.fullmatch(LINE, f"x: recv {message.size}b from {rank} tag {message.tag}")
            assert arriving
            push(time + latency, message.peer, f"message {label}", Op(arriving))
            end(rank, label)
    assert ended == sum(map(len, ranks)), "not all operations end"
    return max(*cpu, *out)


SAME = (
    "all_reduce.ring", "all_reduce.recursive_doubling", "all_reduce.rabenseifner", "all_reduce.circulant",
    "all_reduce.swing", "all_reduce.bruck", "all_gather.ring", "all_gather.bruck", "all_gather.recursive_doubling",
    "reduce_scatter.ring", "reduce_scatter.circulant", "broadcast.binomial", "all_to_all.bruck",
    "all_to_all.pairwise", "gather.linear", "scatter.linear", "barrier.dissemination",
)  # fmt: skip
"""Algorithms in which no rank receives before it begins to send in a round. In LogGOPSim such a rank cannot do both."""


@each("name", SAME)
def test_makespans_are_those_of_our_clock(name: str) -> None:
    for ranks in (2, 4, 8):
        table = CATALOGUE[name].schedule(ranks)
        size = 0 if table.collective == "barrier" else NBYTES
        text = exported(table, "goal", size, LINK)[""].decode()
        ops = parse(text)
        hardware = Hardware(between=LINK, message_share=0.0, eager_bytes=1 << 40)
        ours = float(play(messages(table), Network(Hosts.parse(f"{ranks}x1"), hardware), size).ready.max()) * 1e9
        theirs = loggops(ops, 20_000, 1.0)
        assert theirs == pytest.approx(ours, rel=1e-4, abs=len(max(ops, key=len))), (ranks, ours, theirs)


@each("name", CATALOGUE)
def test_all_algorithms_are_goal(name: str) -> None:
    """Every message has its receive, of the same size; operations of all ranks end."""
    for ranks in (1, 2, 3, 5, 8):
        if CATALOGUE[name].allows(ranks):
            ops = parse(exported(CATALOGUE[name].schedule(ranks), "goal", NBYTES, LINK)[""].decode())
            sent = [(r, op.peer, op.tag, op.size) for r, of in enumerate(ops) for op in of.values() if op.way == "send"]
            got = [(op.peer, r, op.tag, op.size) for r, of in enumerate(ops) for op in of.values() if op.way == "recv"]
            assert sorted(sent) == sorted(got)
            assert len({key[:3] for key in sent}) == len(sent)
            loggops(ops, 20_000, 1.0)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message of Protocol Buffers: numbers and strings of bytes."""
    out, at = list[tuple[int, int | bytes]](), 0
    while at < len(data):
        key, at = varint(data, at)
        assert key & 7 in (0, 2)
        value, at = varint(data, at)
        if key & 7 == 2:
            out.append((key >> 3, data[at : at + value]))
            at += value
        else:
            out.append((key >> 3, value))
    return out


def framed(data: bytes) -> list[bytes]:
    out, at = list[bytes](), 0
    while at < len(data):
        length, at = varint(data, at)
        assert at + length <= len(data)
        out.append(data[at : at + length])
        at += length
    return out


def nodes(data: bytes) -> list[dict[str, object]]:
    """The nodes of a trace, with their attributes."""
    head, *rest = map(fields, framed(data))
    assert head == [(1, b"0.0.4")]
    names = {1: "id", 2: "name", 3: "type", 5: "data_deps", 7: "duration_micros"}
    found = list[dict[str, object]]()
    for node in rest:
        one: dict[str, object] = {"data_deps": []}
        for field, value in node:
            if field == 10:
                (_, name), (kind, number) = fields(value)  # type: ignore[arg-type]
                assert kind in (7, 9, 13, 27)
                one[name.decode()] = number  # type: ignore[union-attr]
            elif field == 5:
                at, deps = 0, list[int]()
                while at < len(value):  # type: ignore[arg-type]
                    dep, at = varint(value, at)  # type: ignore[arg-type]
                    deps.append(dep)
                one["data_deps"] = deps
            else:
                one[names[field]] = value
        found.append(one)
    return found


def test_traces_of_chakra(tmp_path: Path) -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    paths = write(ring, tmp_path / "ring", "chakra", nbytes=4000)
    assert [path.name for path in paths] == [f"ring.{rank}.et" for rank in range(4)]
    traces = [nodes(path.read_bytes()) for path in paths]
    for rank, trace_ in enumerate(traces):
        assert [node["id"] for node in trace_] == list(range(len(trace_)))
        assert all(dep < node["id"] for node in trace_ for dep in node["data_deps"])  # type: ignore[attr-defined,operator]
        assert not any(node["is_cpu_op"] for node in trace_)
        sends, recvs, sums = ([node for node in trace_ if node["type"] == kind] for kind in (5, 6, 4))
        assert (len(sends), len(recvs), len(sums)) == (6, 6, 3)
        assert all(node["comm_size"] == 1000 and node["comm_src"] == rank for node in sends)
        assert all(node["comm_dst"] == rank for node in recvs)
        assert all(node["num_ops"] == 250 and node["duration_micros"] == 1 for node in sums)
    sent = {(n["comm_src"], n["comm_dst"], n["comm_tag"]) for t in traces for n in t if n["type"] == 5}
    assert sent == {(n["comm_src"], n["comm_dst"], n["comm_tag"]) for t in traces for n in t if n["type"] == 6}
    assert len(sent) == 4 * 6


def test_sums_follow_their_receive() -> None:
    table = CATALOGUE["all_reduce.two_shot"].schedule(3)
    for data in exported(table, "chakra", NBYTES, LINK).values():
        by_id = {node["id"]: node for node in nodes(data)}
        sums = [node["data_deps"] for node in by_id.values() if node["type"] == 4]
        assert len(sums) == int((table.rows[:, OP] == ADD).sum()) // 3
        assert all(len(deps) == 1 and by_id[deps[0]]["type"] == 6 for deps in sums)  # type: ignore[index,arg-type]


def test_wrong_tables_are_not_exported(tmp_path: Path) -> None:
    wrong = trace(lambda r, p: [send(0, 1, 0, op=COPY)], 2, 1, "all_reduce", name="wrong")
    for format_ in ("goal", "chakra"):
        with pytest.raises(AlgorithmError, match="wrong is not a correct all_reduce"):
            write(wrong, tmp_path / "x", format_)
    assert not list(tmp_path.iterdir())
