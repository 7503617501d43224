"""How programs are drawn: a world, then one program after another for it, all from a seed."""

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from tests.fuzz import programs
from tests.fuzz.messages import FORMS as OBJECT_FORMS
from tests.fuzz.messages import TENSORS, WAYS
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
        settings = tuple((name, draw.choice(SETTINGS[name])) for name in sorted(names))
        self._empty = programs.Program(hosts, (), settings, api)
        self._most_bytes = min(most_bytes, 256 << 10) if set(FINE) & set(names) else most_bytes
        self._hosts, self._native, self._tag = Hosts.parse(hosts), api == "unisono", 2
        self._world: Groups = {"world": (tuple(range(self._hosts.ranks)),)}

    def program(self) -> programs.Program:
        groups = dict(self._world)
        return replace(self._empty, steps=tuple(self._step(groups) for _ in range(self.draw.randint(1, 12))))

    def calls(self, count: int) -> programs.Program:
        """A program of so many collectives of the world, of which those in the background end four calls later."""
        steps = [programs.Wait(k) if k % 5 == 4 else self._call("world", self._world) for k in range(count * 5 // 4)]
        return replace(self._empty, steps=tuple(steps))

    def _step(self, groups: Groups, *, in_thread: bool = False) -> programs.Step:
        draw, group, later = self.draw, self.draw.choice(list(groups)), self.draw.random() < 0.3
        ways: dict[Callable[[], programs.Step], int] = {
            lambda: self._call(group, groups): 12,
            lambda: programs.Barrier(group, self._algorithm("barrier", "-", "int64", groups[group]), later): 1,
            lambda: programs.Objects(draw.choice(OBJECT_FORMS), group, draw.randrange(5), draw.randrange(9999)): 1,
            lambda: self._messages(group, groups): 3,
            lambda: programs.Wait(draw.randrange(100)): 1,
            lambda: programs.Late(draw.randrange(self._hosts.ranks), round(draw.random() * 3e-3, 4)): 1,
            lambda: self._coalesced(group): 2 * self._native,
            lambda: self._wrong(self._call("world", groups)): int(self._native),
            lambda: self._group(groups): int(not in_thread),
            lambda: programs.Threads(tuple(self._branch() for _ in range(draw.choice((2, 2, 3))))): int(not in_thread),
        }
        return draw.choices([*ways], [*ways.values()])[0]()

    def _branch(self) -> tuple[programs.Step, ...]:
        return tuple(self._step(self._world, in_thread=True) for _ in range(self.draw.randint(1, 4)))

    def _group(self, groups: Groups) -> programs.Step:
        draw, size, name = self.draw, self._hosts.ranks, f"group_{len(groups)}"
        if self._native and draw.random() < 0.4:
            colors = tuple(draw.randrange(-1, 3) for _ in range(size))
            keys = tuple(draw.randrange(3) for _ in range(size))
            of_color = (sorted((r for r in range(size) if colors[r] == c), key=lambda r: keys[r]) for c in range(3))
            if made := tuple(tuple(part) for part in of_color if part):
                groups[name] = made
            return programs.Split(name, colors, keys)
        parent = draw.choice(list(groups)) if self._native else "world"
        ranks = tuple(sorted(draw.sample(range(size), draw.randint(1, size))))
        parts = groups[parent]
        groups[name] = tuple(tuple(part[k] for k in sorted({rank % len(part) for rank in ranks})) for part in parts)
        return programs.MakeGroup(name, ranks, parent)

    def _call(self, name: str, groups: Groups) -> programs.Call:
        draw, native, spans = self.draw, self._native, self._hosts.spans
        form = draw.choice([form for form in FORMS if native or form not in ("scan", "exscan")])
        dtype = draw.choice(DTYPES if form in REDUCING or draw.random() < 0.8 else MOVED)
        op = draw.choice([op for op in matrix.ops(form, dtype) if self._knows(op, dtype)])
        blocks = draw.choice([b for b in FORMS[form] if native or b == "even" or form == "all_to_all"])
        known = [one for one in matrix.layouts(form, dtype, blocks) if native or one in TORCH_LAYOUTS]
        layout = draw.choice(["contiguous", draw.choice(known)])
        algorithm = self._algorithm(form.removesuffix("_single"), op, dtype, groups[name])
        if spans and blocks != "even" and form.startswith("all_to_all") and algorithm in MOVE_BLOCKS:
            algorithm = None
        exact = algorithm is not None or spans or draw.random() < 0.3
        alias = form in ALIASED and layout in ("contiguous", "offset") and blocks != "unknown" and draw.random() < 0.3
        shared = matrix.can_be_shared(form, layout) and draw.random() < 0.5
        n, later = self._count(form, dtype, op, layout), draw.random() < 0.4
        root, seed = draw.randrange(5), draw.randrange(1000)
        case = Case(form, dtype, op, n, layout, blocks, shared, later, root, seed, exact, alias)
        return programs.Call(case, name, algorithm)

    def _wrong(self, call: programs.Call) -> programs.Call:
        """Some ranks refuse it, and on more than one rank another one may make a barrier."""
        draw, size = self.draw, self._hosts.ranks
        some = draw.sample(range(size), draw.choice((1, 1, size)))
        mistakes = [draw.choice(("algorithm", "argument")) for _ in some]
        if size > 1 and draw.random() < 0.3:
            mistakes[0] = "barrier"
        return replace(call, mistakes=tuple(zip(some, mistakes, strict=True)))

    def mistakes(self, count: int, longest_s: float) -> programs.Program:
        """Calls of one shape: a rank that is one call ahead or behind would get wrong values, and no error.

        In every 16th a rank is late by so much that others, which refuse the calls after it, are several ahead.
        """
        draw, ranks, late = self.draw, range(self._hosts.ranks), 0
        steps: list[programs.Step] = [programs.MakeGroup("other", tuple(ranks))]
        for k in range(count):
            form = draw.choice(("all_reduce", "broadcast", "all_gather", "all_to_all_single"))
            op = "sum" if form in REDUCING else "-"
            case = Case(form, "float32", op, 4, async_op=draw.random() < 0.3, root=1, seed=k, exact=True)
            call = programs.Call(case, "other" if k % 16 < 12 and draw.random() < 0.5 else "world")
            pause = programs.Late(draw.choice(ranks), longest_s if k % 16 == 3 else draw.random() * 0.02)
            late = pause.rank if k % 16 == 3 else late
            steps.append(pause)
            if 3 <= k % 16 < 8 and draw.random() < 0.8:
                steps.append(replace(call, mistakes=tuple((rank, "argument") for rank in ranks if rank != late)))
            else:
                steps.append(self._wrong(call) if draw.random() < 0.5 else call)
        return replace(self._empty, steps=tuple(steps))

    def _knows(self, op: str, dtype: str) -> bool:
        """Has the API this op? Custom ops are drawn of two dtypes only, because Numba compiles one for each dtype."""
        if op == "numbers":
            return self._native and dtype in ("int64", "bfloat16")
        return self._native or not getattr(torch, dtype).is_complex or op in ("-", "sum", "avg")

    def _count(self, form: str, dtype: str, op: str, layout: str) -> int:
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
        if not self._native or op == "numbers" or whole or in_order or self.draw.random() < 0.5:
            return None
        names = [a for a in CATALOGUE.values() if a.collective == collective]
        known = [a.name for a in names if all(a.allows(len(part)) for part in parts)]
        if self._hosts.spans and all(self._hosts.restrict(part).spans for part in parts):
            known += [core for core in CORES.get(collective, ()) if core not in known]
        return self.draw.choice(known)

    def _coalesced(self, group: str) -> programs.Coalesced:
        draw = self.draw
        form = draw.choice(TENSORS)
        op = draw.choice(("sum", "min", "max", "avg", "product")) if form in (TENSORS[0], TENSORS[3]) else "sum"
        known = [d for d in DTYPES if (d, op) in PAIR_OF]
        if form in TENSORS[5:]:
            known = ["float16", "bfloat16", "float32", "float64"]
        parts = tuple((draw.choice(known), draw.choice(COUNTS[:9])) for _ in range(draw.randint(1, 5)))
        later = form.endswith("_coalesced") and draw.random() < 0.4
        strided = draw.random() < 0.3
        return programs.Coalesced(form, parts, op, group, later, strided, draw.randrange(5), draw.randrange(1000))

    def _messages(self, group: str, groups: Groups) -> programs.Step:
        draw, native = self.draw, self._native
        least, most = min(map(len, groups[group])), max(map(len, groups[group]))
        if least == 1 and not native:  # torch sends to nobody itself
            return programs.Wait()
        way = draw.choice(["ring", "sendrecv", "batch"] if least == 1 else list(WAYS) if native else TORCH_WAYS)
        self._tag += 1
        shift = draw.randrange(most) if native or way != "ring" else draw.randrange(1, least)
        tag = draw.randrange(2) if way == "ring" else self._tag
        dtype = draw.choice((*DTYPES, *MOVED))
        layouts = [layout for layout in matrix.layouts("gather", dtype, "even") if layout not in ("scalar", "empty")]
        layout = draw.choice(["contiguous", *(layouts if native else ())])
        count = draw.choice(COUNTS if draw.random() < 0.95 else LONG[:1])
        shared, seed = layout != "mixed" and draw.random() < 0.4, draw.randrange(1000)
        return programs.Messages(way, dtype, count, tag, shift, group, layout, shared, seed)
