"""MSCCL++'s execution plans: what its DSL writes is read and proved, what is wrong or no table is refused.

And what is written is read again as it was, in both formats, for all algorithms.
"""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from unisono.base.errors import AlgorithmError, ArgumentError, UnisonoError
from unisono.schedule import ROOTED, Schedule, X, Y, prove, spread
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import msccl, mscclpp

Plan = dict[str, Any]


def of(plan: Plan) -> Schedule:
    return mscclpp.read(json.dumps(plan).encode(), "plan.json")


def run(index: int, size: int = 1, *, buffer: str = "", remote: int = -1) -> Plan:
    which: Plan = {"type": buffer} if buffer else {"buffer_id": remote}
    return {**which, "index": index, "size": size}


def sync(name: str) -> Plan:
    return {"name": name, "channel_ids": [0], "channel_type": "memory"}


def op(name: str, sources: list[Plan], targets: list[Plan]) -> Plan:
    return {"name": name, "src_buff": sources, "dst_buff": targets, "channel_type": "memory"}


NOP: Plan = {"name": "nop"}
USED = {"channel_type": "memory", "channel_ids": [0]}


def plan(collective: str, blocks: list[list[list[Plan]]], sizes: tuple[int, int, int], remote: str) -> Plan:
    """A plan of two gpus. blocks: gpu -> thread block -> operations. remote: the buffers of the peer."""
    gpus, refs = [], [{"access_channel_type": "memory", "remote_buffer_ids": [*range(len(remote))]}]
    for gpu, of_gpu in enumerate(blocks):
        sized = dict(zip(("input_chunks", "output_chunks", "scratch_chunks"), sizes, strict=True))
        buffers = [{"rank": 1 - gpu, "type": letter, "access_channel_types": ["memory"]} for letter in remote]
        channels = [{"channel_type": "memory", "connected_to": [1 - gpu]}]
        threadblocks = [
            {"id": number, "ops": ops, "channels": [] if number else [USED], "remote_buffer_refs": refs}
            for number, ops in enumerate(of_gpu)
        ]
        gpus.append({"id": gpu, **sized, "threadblocks": threadblocks, "channels": channels, "remote_buffers": buffers})
    return {"name": "mine", "collective": collective, "protocol": "Simple", "inplace": True, "gpus": gpus}


def put_all_gather() -> Plan:
    """Both put their chunk into the other's output, between two meetings."""
    blocks = []
    for g in range(2):
        put = op("put", [run(g, buffer="o")], [run(g, remote=0)])
        blocks.append([[sync("signal"), sync("wait"), NOP, put, NOP, sync("signal"), sync("wait")]])
    return plan("allgather", blocks, (1, 2, 0), "o")


def reduce_of_all_kinds() -> Plan:
    """As a test of the DSL: rres, get and res on one gpu; rre, copy and put on the other."""
    a = [
        op("copy", [run(2, 2, buffer="i")], [run(2, 2, buffer="s")]), NOP, sync("signal"), sync("wait"), NOP,
        op("rres", [run(0, buffer="i"), run(0, remote=0)], [run(0, buffer="i"), run(0, remote=1)]),
        op("get", [run(1, remote=0)], [run(1, buffer="s")]), NOP,
        op("res", [run(1, buffer="i"), run(1, buffer="s")], [run(1, buffer="i"), run(1, remote=1)]), NOP,
        sync("signal"), sync("wait"),
    ]  # fmt: skip
    b = [
        op("copy", [run(0, 2, buffer="i")], [run(0, 2, buffer="s")]), NOP, sync("signal"), sync("wait"), NOP,
        op("rre", [run(2, 2, buffer="i"), run(2, 2, remote=0)], [run(2, 2, buffer="i")]), NOP,
        op("copy", [run(2, 2, buffer="i")], [run(2, 2, buffer="s")]), NOP,
        op("put", [run(2, 2, buffer="s")], [run(2, 2, remote=1)]), NOP, sync("signal"), sync("wait"),
    ]  # fmt: skip
    return plan("allreduce", [[a], [b]], (4, 4, 4), "si")


def with_barrier() -> Plan:
    """One thread block signals, another one gets; a barrier of the gpu orders them."""
    barrier: Plan = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    blocks = []
    for g in range(2):
        get = op("get", [run(1 - g, remote=0)], [run(1 - g, buffer="o")])
        blocks.append([[sync("signal"), sync("wait"), barrier], [barrier, NOP, get]])
    return plan("allgather", blocks, (1, 2, 0), "o")


PLANS = {"puts": put_all_gather(), "all kinds": reduce_of_all_kinds(), "barrier": with_barrier()}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_read_and_written_again(name: str) -> None:
    table = of(PLANS[name])
    assert prove(table).ranks == 2
    assert table.result == X
    assert mscclpp.read(mscclpp.write(table).encode(), "again.json").digest == table.digest


def test_tables_of_other_operations_are_ignored() -> None:
    table = CATALOGUE["all_reduce.one_shot"].schedule(3)
    written = json.loads(mscclpp.write(table))
    row = "0, 0, 0, 0, 0, 0, 1, 0"
    rows = "[1, 2]", f"[9, {row}]", f"[1{'0' * 30}, {row}]"
    for note in ("", "[]", "7", "[[0, 0, 0]]", '[["x", 0, 0]]', *(f"[[0, 0, 0], {bad}]" for bad in rows)):
        assert of({**written, "unisono_table": note}).digest != table.digest
    assert of({**written, "buffer_alignment": 32}).digest != table.digest


def test_plans_may_be_out_of_place() -> None:
    copies = deepcopy(PLANS["puts"])
    copies["inplace"] = False
    for g, gpu in enumerate(copies["gpus"]):
        ops = gpu["threadblocks"][0]["ops"]
        ops[3]["src_buff"] = [run(0, buffer="i")]
        ops.append(op("copy", [run(0, buffer="i")], [run(g, buffer="o")]))
    assert of(copies).result == Y


def ops(changed: Plan, gpu: int = 0, block: int = 0) -> list[Plan]:
    found: list[Plan] = changed["gpus"][gpu]["threadblocks"][block]["ops"]
    return found


def gpu(changed: Plan) -> Any:
    return changed["gpus"][0]


Changes = list[tuple[str, Callable[[Plan], Any], str]]
MALFORMED: Changes = [
    ("puts", lambda p: p.update(protocol="LL"), "plan.json: packets are not supported"),
    ("puts", lambda p: p.update(collective="x"), "collective is 'x'"),
    ("puts", lambda p: p.pop("gpus"), "it has no gpus"),
    ("puts", lambda p: p["gpus"].reverse(), "gpu 0: got id=1"),
    ("puts", lambda p: gpu(p).update(output_chunks=3), "got 3 chunks, expected a multiple of 2"),
    ("puts", lambda p: gpu(p).update(output_chunks=1 << 20), "output_chunks is 1048576"),
    ("puts", lambda p: gpu(p)["channels"][0].update(channel_type="port"), "channel_type is"),
    ("puts", lambda p: gpu(p)["channels"][0].update(connected_to=[2]), r"connected_to is \[2\]"),
    ("puts", lambda p: ops(p)[0].update(channel_ids=[4]), r"block 0, step 0: channel_ids is \[4\]"),
    ("puts", lambda p: ops(p)[3].update(name="ppkt"), "step 3: name is 'ppkt', expected one of"),
    ("puts", lambda p: ops(p)[3].update(dst_buff=[run(0, remote=3)]), "step 3, dst 0: buffer_id is 3"),
    ("puts", lambda p: ops(p)[3].update(dst_buff=[run(2, remote=0)]), "step 3: it uses 1 chunks"),
    ("puts", lambda p: ops(p)[3].update(dst_buff=[run(0, 2, remote=0)]), "step 3: .* different sizes"),
    ("puts", lambda p: ops(p)[3].update(tbg_info={"tb_id": 0, "tbg_size": 2}), "groups of thread"),
    ("barrier", lambda p: gpu(p)["threadblocks"][1].update(channels=[USED]), "thread block 1: it shares a channel"),
]
"""Plan, what is changed in it, and what is said."""
WRONG: Changes = [
    ("puts", lambda p: ops(p).append(sync("wait")), "deadlock: gpu 0 waits for 3 signals .*step 7"),
    ("puts", lambda p: [ops(p, g).insert(0, ops(p, g).pop(1)) for g in (0, 1)], "deadlock.*step 0"),
    ("barrier", lambda p: ops(p, 0, 1).pop(0), "barrier 0 of gpu 0 is not entered"),
    ("all kinds", lambda p: ops(p, 1).pop(3), r"race.*gpu \d, thread block 0, step \d"),
    ("puts", lambda p: ops(p)[3].update(dst_buff=[run(1, remote=0)]), "race|ends with"),
    ("puts", lambda p: ops(p).pop(3), "ends without"),
    ("all kinds", lambda p: ops(p).pop(0), "holds nothing|race"),
]


@pytest.mark.parametrize(("error", "changes"), [(ArgumentError, MALFORMED), (AlgorithmError, WRONG)])
def test_wrong_plans_are_refused(error: type[UnisonoError], changes: Changes) -> None:
    for source, change, message in changes:
        changed = deepcopy(PLANS[source])
        change(changed)
        with pytest.raises(error, match=message):
            of(changed)


@pytest.mark.parametrize("text", ["", "[", "[]", "7", "[" * 100_000, '{"a":'])
def test_texts_without_a_plan_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"plan\.json"):
        mscclpp.read(text.encode(), "plan.json")


def without_note(text: str) -> str:
    if text.startswith("<"):
        return re.sub("<!--.*?-->", "", text, flags=re.DOTALL)
    return json.dumps({key: value for key, value in json.loads(text).items() if key != "unisono_table"})


@pytest.mark.parametrize("ranks", range(1, 6))
def test_round_trips_are_identical(ranks: int) -> None:
    for algorithm in CATALOGUE.values():
        for root in ({0, ranks - 1} if algorithm.collective in ROOTED else {0}) if algorithm.allows(ranks) else ():
            table = spread(algorithm.schedule(ranks, root))
            for format_ in (msccl, mscclpp):
                text = format_.write(table)
                assert format_.read(text.encode(), "file").digest == table.digest, table.name
                plain = format_.read(without_note(text).encode(), "file")
                assert (plain.collective, plain.result, plain.root) == (table.collective, table.result, root)
                assert prove(plain).same_bits == prove(table).same_bits, table.name
