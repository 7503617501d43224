"""What simulators read: GOAL as text, Chakra's traces by their schema."""

from pathlib import Path

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


GPU, SIZE = b"R\x0e\n\tis_cpu_op\xd8\x01\x00", b"R\x0e\n\tcomm_sizeH\xc8\x01"
TAGS = [b"R\x0c\n\x08comm_tag8\x00", b"R\x0c\n\x08comm_tag8\x01"]
SENDER = [b"R\x0c\n\x08comm_src8\x00", b"R\x0c\n\x08comm_src8\x01"]
RECEIVER = [b"R\x0c\n\x08comm_dst8\x00", b"R\x0c\n\x08comm_dst8\x01"]
TRACE = {
    "version": (b"\x07", b"\n\x050.0.4"),
    "send": (b"\x5e", b"\x08\x00", b"\x12\x0esend_0_round_0", b"\x18\x05", GPU, SIZE, TAGS[0], SENDER[0], RECEIVER[1]),
    "recv": (b"\x5e", b"\x08\x01", b"\x12\x0erecv_1_round_0", b"\x18\x06", GPU, SIZE, TAGS[0], SENDER[1], RECEIVER[0]),
    "sum": (b"\x48", b"\x08\x02", b"\x12\x0ecalc_2_round_0", b"\x18\x04", b"*\x01\x01", b"8\x01", GPU),
    "its size": (b"R\x0b\n\x07num_opsH2", b"R\x10\n\x0btensor_sizeh\xc8\x01"),
    "next": (b"\x62", b"\x08\x03", b"\x12\x0esend_3_round_1", b"\x18\x05", b"*\x02\x00\x02", GPU, SIZE, TAGS[1]),
}
"""The first nodes of rank 0 by `et_def.proto` of Chakra: length, id, name, type, what it needs, how many microseconds
it takes, attributes. The two bytes c8 01 are 200."""


def test_traces_of_chakra(tmp_path: Path) -> None:
    paths = write(CATALOGUE["all_reduce.ring"].schedule(2), tmp_path / "ring", "chakra", nbytes=400)
    assert [path.name for path in paths] == ["ring.0.et", "ring.1.et"]
    assert paths[0].read_bytes().startswith(b"".join(field for node in TRACE.values() for field in node))
    assert b"\x12\x0erecv_0_round_0" in paths[1].read_bytes()
