"""Run tables as messages with all ranks in one process: at random timings, with data that show every mistake."""

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import torch

from tests.support.execute import even_bounds, execute
from tests.support.in_process_carrier import InProcessCarrier, Wires, combine_kernel
from unisono.engine.carrier import Carrier
from unisono.engine.reducers import combine_address
from unisono.engine.tape import LEFT
from unisono.engine.tensors import dtype_name
from unisono.hosts.messages import Bytes, MessageProgram, Room, Tags, TapeRow, TapeRun, TapeWriter, lower
from unisono.hosts.messages.message_program import FINAL, GIVEN, KEPT, ChunkPlace
from unisono.schedule import BLOCKED, Schedule, T, X, Y
from unisono.schedule.algorithms import CATALOGUE

_SALT = 7


def combined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """An operation for which order and grouping matter."""
    return (first * 3 + second * 5 + first * second) % 65_521


def elements(schedule: Schedule, wanted: int) -> int:
    """A number of elements that the table's collective can have: as many as wanted, or so many per chunk."""
    return wanted * schedule.chunks if schedule.collective in BLOCKED else wanted


def tag(call: int, round_: int, index: int) -> int:
    """A tag that no other message has."""
    return (call * 1009 + round_) * 31 + index


def cut(vector: torch.Tensor, chunks: int) -> list[torch.Tensor]:
    bounds = even_bounds(len(vector), chunks).tolist()
    return [vector[a:b] for a, b in pairwise(bounds)]


def tape_of(
    carrier: Carrier,
    program: MessageProgram,
    peers: Sequence[int],
    chunks: Sequence[torch.Tensor],
    kernel: int,
    number: int,
    tags: Tags,
    *,
    y: Sequence[torch.Tensor] = (),
    given: Sequence[torch.Tensor] | None = None,
    final: Sequence[torch.Tensor] | None = None,
    waits_until_left: bool = False,
    **more: Any,
) -> TapeRun:
    """One program on tensors, as a tape. Its messages keep them.

    chunks, y: the chunks of buffers X and Y, also of the input and of results, if these have no others.
    kernel: the address of the combine kernel; 0: none.
    waits_until_left: it ends with a LEFT.
    more: see `TapeWriter.leg`.
    """
    room, places = Room(), dict[ChunkPlace, Bytes]()
    vars(room)["tensors"] = chunks, y, given, final
    for buffer, kept in ((X, chunks), (Y, y)):
        for where, others in ((KEPT, None), (GIVEN, given if buffer == X else None), (FINAL, final)):
            for chunk, tensor in enumerate(kept if others is None else others):
                places[ChunkPlace(buffer, chunk, where)] = span_of(tensor)
    for chunk, tensor in enumerate(chunks):
        places[ChunkPlace(T, chunk, KEPT)] = room.take(tensor.nbytes)
    combine = (kernel, chunks[0].dtype.itemsize) if kernel else None
    writer = TapeWriter(carrier, room, combine)
    rows = [*writer.leg(program, peers, places, tags, **more)]
    rows += [TapeRow(LEFT, (-1,))] if waits_until_left else []
    run = TapeRun(carrier, rows)
    run.begin(number)
    return run


def part_of(
    carrier: Carrier,
    name: str,
    rank: int,
    vector: torch.Tensor,
    number: int = 1,
    *,
    stands: bool = True,
    combine: bool = True,
    **more: Any,
) -> TapeRun:
    """One rank's part in a table of two ranks that sums, on its vector. more: see `tape_of`.

    stands: short messages arrive in receives that are always posted.
    """
    schedule = CATALOGUE[name].schedule(2)
    kernel = combine_address(dtype_name(vector.dtype), "sum", last=False) if combine else 0
    tags = Tags(tag, (lambda round_: round_) if stands else None)
    chunks, y = cut(vector, schedule.chunks), cut(vector.clone(), schedule.chunks)
    return tape_of(carrier, lower(schedule)[rank], [0, 1], chunks, kernel, number, tags, y=y, **more)


def span_of(tensor: torch.Tensor) -> Bytes:
    """Where a tensor lies."""
    return Bytes(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


class Layout(Enum):
    """Which memory of a rank is one."""

    ONE = "input, intermediate values and results, as far as a buffer has them"
    APART = "none"
    IN_PLACE = "input and results"

    @classmethod
    def of(cls, schedule: Schedule, seed: int) -> "Layout":
        """One of those that calls of this table can have."""
        never_in_place = schedule.collective == "all_to_all"
        return [cls.ONE, cls.APART, cls.IN_PLACE][seed % (2 if never_in_place else 3)]


class _Place:
    """The memory of one rank."""

    def __init__(self, schedule: Schedule, values: np.ndarray, layout: Layout, dtype: torch.dtype) -> None:
        self.given = torch.tensor(values, dtype=dtype)
        self.kept = self.given if layout is Layout.ONE else torch.full_like(self.given, -1)
        self.y = torch.zeros_like(self.given)
        self.final = {
            Layout.ONE: self.y if schedule.result == Y else self.given,
            Layout.APART: torch.full_like(self.given, -2),
            Layout.IN_PLACE: self.given,
        }[layout]

    def of(self, buffer: int, where: int) -> torch.Tensor:
        """Where values of a buffer end."""
        return self.final if where == FINAL else self.y if buffer == Y else self.kept


def run_messages(
    schedule: Schedule,
    programs: Sequence[MessageProgram],
    wanted: int,
    seed: int,
    *,
    layout: Layout = Layout.ONE,
    calls: int = 1,
    dtype: torch.dtype = torch.int64,
) -> None:
    """Run programs `calls` times, timed by a seed; assert that what they write holds what the table leaves there."""
    random, p, chunks = Random(seed), schedule.ranks, schedule.chunks
    wires, n = Wires(random), elements(schedule, wanted)
    carriers = [InProcessCarrier(wires, rank + _SALT) for rank in range(p)]
    values = [np.array([random.randrange(65_521) for _ in range(n)], dtype=np.int64) for _ in range(p)]
    places = [_Place(schedule, values[rank], layout, dtype) for rank in range(p)]

    def combine(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
        out.copy_(torch.from_numpy(combined(first.long().numpy(), second.long().numpy())))

    _kept, kernel = combine_kernel(combine, dtype)

    def tape(rank: int) -> TapeRun:
        place = places[rank]
        return tape_of(
            carriers[rank],
            programs[rank],
            [rank + _SALT for rank in range(p)],
            cut(place.kept, chunks),
            kernel,
            1,
            Tags(tag, lambda round_: round_),
            y=cut(place.y, chunks),
            given=None if layout is Layout.ONE else cut(place.given, chunks),
            final=None if layout is Layout.ONE else cut(place.final, chunks),
        )

    tapes = [tape(rank) for rank in range(p)]
    for call in range(calls):
        if call:
            values = [(vector + call) % 65_521 for vector in values]
            for rank, place in enumerate(places):
                place.given.copy_(torch.from_numpy(values[rank]))
                tapes[rank].begin(call + 1)
        _finish(tapes, wires, random)
        assert wires.unmet == 0
        _check(schedule, programs, places, values)
        if layout is Layout.APART:
            assert all(np.array_equal(place.given.numpy(), mine) for place, mine in zip(places, values, strict=True))
    for one in tapes:
        one.close()


def _finish(tapes: Sequence[TapeRun], wires: Wires, random: Random) -> None:
    going = list(tapes)
    while going:
        if random.random() < 0.5 or not wires.move():
            one = random.choice(going)
            if one.advance():
                going.remove(one)
            else:
                assert one.waiting_for >= _SALT
    while wires.move():
        pass


def _check(
    schedule: Schedule, programs: Sequence[MessageProgram], places: Sequence[_Place], values: list[np.ndarray]
) -> None:
    want = execute(schedule, values, combine=combined)
    for rank, program in enumerate(programs):
        for (buffer, chunk), where in program.ends.items():
            got = cut(places[rank].of(buffer, where), schedule.chunks)[chunk].numpy()
            right = cut(torch.from_numpy(want[buffer][rank]), schedule.chunks)[chunk].numpy()
            assert np.array_equal(got, right), (schedule.name, rank, "XY"[buffer], chunk)
        assert {X, Y} >= {buffer for buffer, _ in program.ends}


def finish(ranks: list[TapeRun], wires: Wires) -> None:
    going = ranks
    while going:
        going = [one for one in going if not one.advance()]
        wires.move()
    while wires.move():
        pass
