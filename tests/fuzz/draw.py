"""How programs are drawn: a world, then one program after another for it, all from a seed."""

import random
from dataclasses import replace

import torch

from tests.fuzz.many import REDUCING as REDUCING_MANY
from tests.fuzz.many import TENSORS
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.messages import WAYS
from tests.fuzz.programs import (
    Barrier,
    Call,
    Coalesced,
    Late,
    MakeGroup,
    Messages,
    Objects,
    Program,
    Split,
    Step,
    Threads,
    Wait,
    Wrong,
)
from tests.support import matrix
from tests.support.matrix import ALIASED, FORMS, MOVED, PAIR_OF, REDUCING, Case
from unisono.engine.reducers import DTYPES
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES

HOSTS = ("1", "2", "3", "4", "5", "2x1", "2x2", "3x1", "3+1", "1+2", "2x2:round_robin")
SETTINGS: dict[str, tuple[float | str, ...]] = {
    "segment_bytes": (4096, 100_000),
    "one_shot_bytes": (0, 1 << 20),
    "crowd_one_shot_bytes": (0, 1 << 20),
    "zero_copy_bytes": (0, 64, 1 << 20),
    "cross_memory_bytes": (0, 1, 4096),
    "inline_bytes": (0, 64, 1 << 20),
    "look_up_s": (1e-6,),
    "spins": (0,),
    "keep_inputs": (1,),
    "lanes": (2, 3, 8),
    "link": ("1Gbit,100us", "100Gbit,1us"),
}
"""Settings that shape what calls do, with values that are as far from usual as they can be."""

COUNTS = (0, 1, 2, 7, 64, 97, 1000, 2049, 5003, 5003, 20_011, 100_003)
LONG = (400_009, 1 << 20, 3_000_017)
MOST_BYTES = 16 << 20  # what all ranks together pass in a call

MOVE_BLOCKS = ("bruck", "hierarchical")
"""All_to_all by these moves blocks to places of others, and over hosts is refused where these have other sizes."""

FINE = ("segment_bytes", "look_up_s")  # settings with which a long call takes very many steps

TORCH_LAYOUTS = ("contiguous", "offset", "strided", "transposed", "scalar", "empty", "mixed", "channels_last")
TORCH_WAYS = ("pair", "ring", "batch", "any", "objects")

Groups = dict[str, tuple[tuple[int, ...], ...]]
"""Of each name, the groups that have it (split makes several), as ranks of the world."""


class Session:
    """Draws programs for one world. only: of these hosts. most_bytes: what all ranks together pass in a call."""

    def __init__(
        self,
        seed: str,
        only: tuple[str, ...] = HOSTS,
        most_bytes: int = MOST_BYTES,
        apis: tuple[str, ...] = ("unisono", "unisono", "torch"),
    ) -> None:
        self.draw = draw = random.Random(seed)
        hosts = draw.choice(only)
        api = draw.choice(apis)
        names = draw.sample(list(SETTINGS), draw.choice((0, 0, 1, 2, 3)))
        self._empty = Program(hosts, (), tuple((name, draw.choice(SETTINGS[name])) for name in sorted(names)), api)
        self._most_bytes = min(most_bytes, 256 << 10) if set(FINE) & set(names) else most_bytes
        self._hosts, self._api, self._tag = Hosts.parse(hosts), api, 2

    def program(self) -> Program:
        """The next program."""
        groups: Groups = {"world": (tuple(range(self._hosts.ranks)),)}
        steps = tuple(self._step(groups) for _ in range(self.draw.randint(1, 12)))
        return replace(self._empty, steps=steps)

    def _step(self, groups: Groups, *, in_thread: bool = False) -> Step:
        draw, group = self.draw, self.draw.choice(list(groups))
        kinds = {"call": 12, "barrier": 1, "objects": 1, "messages": 3, "wait": 1, "late": 1}
        if self._api == "unisono":
            kinds |= {"coalesced": 2, "wrong": 1}
        if not in_thread:
            kinds |= {"group": 1, "threads": 1}
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        if kind == "call":
            return self._call(group, groups)
        if kind == "barrier":
            return Barrier(group, self._algorithm("barrier", "-", "int64", groups[group]), draw.random() < 0.3)
        if kind == "objects":
            return Objects(draw.choice(OBJECT_FORMS), group, draw.randrange(5), draw.randrange(9999))
        if kind == "messages":
            return self._messages(group, groups)
        if kind == "wait":
            return Wait(draw.randrange(100))
        if kind == "late":
            return Late(draw.randrange(self._hosts.ranks), round(draw.random() * 3e-3, 4))
        if kind == "coalesced":
            return self._coalesced(group)
        if kind == "wrong":
            return self._wrong(self._call("world", groups))
        if kind == "group":
            return self._group(groups)
        world = {"world": groups["world"]}
        return Threads(
            tuple(
                tuple(self._step(world, in_thread=True) for _ in range(draw.randint(1, 4)))
                for _ in range(draw.choice((2, 2, 3)))
            )
        )

    def _group(self, groups: Groups) -> Step:
        draw, size, name = self.draw, self._hosts.ranks, f"group_{len(groups)}"
        if self._api == "unisono" and draw.random() < 0.4:
            colors = tuple(draw.randrange(-1, 3) for _ in range(size))
            keys = tuple(draw.randrange(3) for _ in range(size))
            parts = (sorted((r for r in range(size) if colors[r] == c), key=lambda r: keys[r]) for c in range(3))
            groups[name] = tuple(tuple(part) for part in parts if part) or ((),)
            if groups[name] == ((),):
                del groups[name]
            return Split(name, colors, keys)
        parent = draw.choice(list(groups)) if self._api == "unisono" else "world"
        ranks = tuple(sorted(draw.sample(range(size), draw.randint(1, size))))
        groups[name] = tuple(
            tuple(part[k] for k in sorted({rank % len(part) for rank in ranks})) for part in groups[parent]
        )
        return MakeGroup(name, ranks, parent)

    def _call(self, name: str, groups: Groups) -> Call:
        draw = self.draw
        forms = [form for form in FORMS if self._api == "unisono" or form not in ("scan", "exscan")]
        form = draw.choice(forms)
        dtype = draw.choice(DTYPES if form in REDUCING or draw.random() < 0.8 else MOVED)
        op = draw.choice([op for op in matrix.ops_to_draw(form, dtype) if self._knows(op, dtype)])
        known = [b for b in FORMS[form] if self._api == "unisono" or b == "even" or form == "all_to_all"]
        blocks = draw.choice([b for b in known if self._api == "unisono" or b != "unknown"])
        layouts = [
            layout
            for layout in matrix.layouts(form, dtype, blocks)
            if self._api == "unisono" or layout in TORCH_LAYOUTS
        ]
        layout = draw.choice(["contiguous", draw.choice(layouts)])
        algorithm = None
        if self._api == "unisono":
            algorithm = self._algorithm(form.removesuffix("_single"), op, dtype, groups[name])
            if self._hosts.spans and blocks != "even" and form.startswith("all_to_all") and algorithm in MOVE_BLOCKS:
                algorithm = None
        exact = algorithm is not None or self._hosts.spans or draw.random() < 0.3
        alias = form in ALIASED and layout in ("contiguous", "offset") and blocks != "unknown" and draw.random() < 0.3
        shared = matrix.can_be_shared(form, layout) and draw.random() < 0.5
        case = Case(
            form, dtype, op, self._count(form, dtype, op, layout), layout, blocks, shared, draw.random() < 0.4,
            draw.randrange(5), draw.randrange(1000), exact, alias,
        )  # fmt: skip
        return Call(case, name, algorithm)

    def _wrong(self, call: Call) -> Wrong:
        """Some ranks refuse it, and on more than one rank another one may make a barrier."""
        draw, size = self.draw, self._hosts.ranks
        some = draw.sample(range(size), draw.choice((1, 1, size)))
        mistakes = [draw.choice(("algorithm", "argument")) for _ in some]
        if size > 1 and draw.random() < 0.3:
            mistakes[0] = "barrier"
        return Wrong(call, tuple(zip(some, mistakes, strict=True)))

    def mistakes(self, count: int, longest_s: float) -> Program:
        """Calls of one shape: a rank that is one call ahead or behind would get wrong values, and no error.

        In every 16th a rank is late by so much that others, which refuse the calls after it, are several ahead.
        """
        draw, ranks, steps = self.draw, range(self._hosts.ranks), list[Step]()
        steps.append(MakeGroup("other", tuple(ranks)))
        late = 0
        for k in range(count):
            form = draw.choice(("all_reduce", "broadcast", "all_gather", "all_to_all_single"))
            op = "sum" if form in REDUCING else "-"
            case = Case(form, "float32", op, 4, async_op=draw.random() < 0.3, root=1, seed=k, exact=True)
            call = Call(case, "other" if k % 16 < 12 and draw.random() < 0.5 else "world")
            if k % 16 == 3:
                late = draw.choice(ranks)
            steps.append(Late(late, longest_s) if k % 16 == 3 else Late(draw.choice(ranks), draw.random() * 0.02))
            if 3 <= k % 16 < 8 and draw.random() < 0.8:
                steps.append(Wrong(call, tuple((rank, "argument") for rank in ranks if rank != late)))
            else:
                steps.append(self._wrong(call) if draw.random() < 0.5 else call)
        return replace(self._empty, steps=tuple(steps))

    def _knows(self, op: str, dtype: str) -> bool:
        """Has the API this op?"""
        whole = not getattr(torch, dtype).is_complex or op in ("-", "sum", "avg")
        return self._api == "unisono" or (op != "numbers" and whole)

    def _count(self, form: str, dtype: str, op: str, layout: str) -> int:
        """How many elements a block has."""
        draw, size = self.draw, self._hosts.ranks
        if layout in ("scalar", "empty"):
            return int(layout == "scalar")
        if op == "numbers":
            return draw.choice(COUNTS[:6])  # the oracle goes through them number by number
        count = draw.choice(LONG) if draw.random() < 0.04 else draw.choice(COUNTS)
        each = getattr(torch, dtype).itemsize * size * (size if form.startswith(("all_", "reduce_s")) else 1)
        most = 5003 if op == "avg" and dtype in ("int64", "uint64") else self._most_bytes // each
        return min(count, most)

    def _algorithm(self, collective: str, op: str, dtype: str, parts: tuple[tuple[int, ...], ...]) -> str | None:
        """An algorithm that a call may name in each of these groups; mostly none."""
        kind = getattr(torch, dtype)
        whole = op == "avg" and not (kind.is_floating_point or kind.is_complex)
        in_order = self._hosts.spans and collective in ("scan", "exscan")
        if self._api != "unisono" or op == "numbers" or whole or in_order or self.draw.random() < 0.5:
            return None
        names = [a for a in CATALOGUE.values() if a.collective == collective]
        known = [a.name for a in names if all(a.allows(len(part)) for part in parts)]
        if self._hosts.spans and all(self._hosts.restrict(part).spans for part in parts):
            known += [core for core in CORES.get(collective, ()) if core not in known]
        return self.draw.choice(known)

    def _coalesced(self, group: str) -> Coalesced:
        draw = self.draw
        form = draw.choice(TENSORS)
        of_floats = ("float16", "bfloat16", "float32", "float64")
        op = draw.choice(("sum", "min", "max", "avg", "product")) if form in REDUCING_MANY[:2] else "sum"
        known = of_floats if form in TENSORS[5:] else [d for d in DTYPES if (d, op) in PAIR_OF]
        parts = tuple((draw.choice(known), draw.choice(COUNTS[:9])) for _ in range(draw.randint(1, 5)))
        later = form.endswith("_coalesced") and draw.random() < 0.4
        strided = draw.random() < 0.3
        return Coalesced(form, parts, op, group, later, strided, draw.randrange(5), draw.randrange(1000))

    def _messages(self, group: str, groups: Groups) -> Step:
        draw = self.draw
        least, most = min(map(len, groups[group])), max(map(len, groups[group]))
        ways = list(WAYS) if self._api == "unisono" else list(TORCH_WAYS)
        if least == 1:  # torch sends to nobody itself
            if self._api != "unisono":
                return Wait()
            ways = ["ring", "sendrecv", "batch"]
        way = draw.choice(ways)
        self._tag += 1
        shift = draw.randrange(most) if self._api == "unisono" or way != "ring" else draw.randrange(1, least)
        tag = draw.randrange(2) if way == "ring" else self._tag
        dtype = draw.choice((*DTYPES, *MOVED))
        layouts = [layout for layout in matrix.layouts("gather", dtype, "even") if layout not in ("scalar", "empty")]
        layout = draw.choice(["contiguous", *(layouts if self._api == "unisono" else ())])
        count = draw.choice(COUNTS if draw.random() < 0.95 else LONG[:1])
        shared, seed = layout != "mixed" and draw.random() < 0.4, draw.randrange(1000)
        return Messages(way, dtype, count, tag, shift, group, layout, shared, seed)
