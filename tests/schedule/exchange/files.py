"""MSCCL files as msccl-tools compiles them, the shapes of the public ones, of any size; and MSCCL's interpreter."""

import random
import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from unisono.schedule import ONE_IN, ONE_OUT, Schedule, X, Y
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.contract import contract, ranks_in
from unisono.schedule.exchange import msccl


class Step(NamedTuple):
    """A step of a thread block. wait: (thread block, step)."""

    kind: str
    src: tuple[str, int] = ("i", -1)
    dst: tuple[str, int] = ("o", -1)
    many: int = 0
    wait: tuple[int, int] = (-1, -1)
    posts: bool = False


Block = tuple[int, int, int, Sequence[Step]]
"""Send peer, receive peer, channel, steps."""


def file(coll: str, chunks: int, gpus: Sequence[Sequence[Block]], sizes: tuple[int, int, int], in_place: bool) -> str:
    """The text of a file. sizes: i_chunks, o_chunks and s_chunks of each gpu."""
    channels = 1 + max(channel for blocks in gpus for _, _, channel, _ in blocks)
    out = [
        f'<algo name="{coll}" proto="LL" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{len(gpus)}" '
        f'coll="{coll}" inplace="{in_place:d}">'
    ]
    for gpu, blocks in enumerate(gpus):
        out.append(f'  <gpu id="{gpu}" i_chunks="{sizes[0]}" o_chunks="{sizes[1]}" s_chunks="{sizes[2]}">')
        for number, (send, recv, channel, steps) in enumerate(blocks):
            out.append(f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">')
            for s, (kind, src, dst, many, wait, posts) in enumerate(steps):
                out.append(
                    f'      <step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1]}" dstbuf="{dst[0]}" '
                    f'dstoff="{dst[1]}" cnt="{many}" depid="{wait[0]}" deps="{wait[1]}" hasdep="{posts:d}"/>'
                )
            out.append("    </tb>")
        out.append("  </gpu>")
    return "\n".join([*out, "</algo>"])


def fused_ring(p: int) -> str:
    """all_reduce: the sum of chunk c goes round from gpu c on channel c, and is kept by nobody until it is whole."""

    def steps(late: int, c: int) -> list[Step]:
        kinds = {0: ["s", "rcs"], p - 1: ["rrcs"], p - 2: ["rrs", "r"]}.get(late, ["rrs", "rcs"])
        if p == 2:
            kinds = [["s", "r"], ["rrcs"]][late]
        return [Step(kind, ("i", c), ("i", c), 1) for kind in kinds]

    gpus = [[((g + 1) % p, (g - 1) % p, c, steps((g - c) % p, c)) for c in range(p)] for g in range(p)]
    return file("allreduce", p, gpus, (p, 0, 0), in_place=True)


def all_pairs(p: int, k: int) -> str:
    """all_reduce: each gpu gets its k chunks of all others in scratch, adds them up, and sends the sums to all."""
    gpus = []
    for g in range(p):
        peers = [q for q in range(p) if q != g]
        blocks: list[list[Step]] = [[], *([] for _ in peers)]
        for t, q in enumerate(peers):
            blocks[t + 1] = [
                Step("s", ("i", q * k), ("s", 0), k),
                Step("r", ("i", g * k), ("s", t * k), k, posts=True),
            ]
        last = {}
        for t, steps in enumerate(blocks):
            for c in range(t, k, p):
                wait = join(steps, [(other, 1) for other in range(1, p) if other != t]) if c == t else (-1, -1)
                for j in range(p - 1):
                    steps.append(Step("re", ("s", j * k + c), ("i", g * k + c), 1, wait))
                    wait = (-1, -1)
                steps[-1] = steps[-1]._replace(posts=True)
                last[t] = len(steps) - 1
        for t, q in enumerate(peers):
            steps = blocks[t + 1]
            wait = join(steps, [end for end in last.items() if end[0] != t + 1])
            steps.append(Step("s", ("i", g * k), ("i", g * k), k, wait))
            steps.append(Step("r", ("i", q * k), ("i", q * k), k))
        gpus.append([(-1, -1, 0, blocks[0])] + [(q, q, 0, blocks[t + 1]) for t, q in enumerate(peers)])
    return file("allreduce", p * k, gpus, (p * k, 0, k * (p - 1)), in_place=True)


def join(steps: list[Step], waits: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Add a nop for each wait but the last, which is returned."""
    steps += [Step("nop", wait=wait) for wait in waits[:-1]]
    return waits[-1] if waits else (-1, -1)


def all_gather(p: int, in_place: bool) -> str:
    """Each gpu sends its chunk to all others: from i to o, or within o."""
    gpus = []
    for g in range(p):
        own = ("o", g) if in_place else ("i", 0)
        peers = [q for q in range(p) if q != g]
        blocks: list[Block] = [(-1, q, 0, [Step("r", own, ("o", q), 1)]) for q in peers]
        blocks += [(q, -1, 0, [Step("s", own, ("o", g), 1)]) for q in peers]
        if not in_place:
            blocks.append((-1, -1, 0, [Step("cpy", own, ("o", g), 1)]))
        gpus.append(blocks)
    return file("allgather", p, gpus, (0 if in_place else 1, p, 0), in_place)


WRITTEN = msccl.write(CATALOGUE["all_to_all.hierarchical"].schedule(4))
FILES = {
    **{f"fused ring of {p}": fused_ring(p) for p in (2, 3, 4, 8)},
    **{f"all pairs of {p}, {k} chunks each": all_pairs(p, k) for p, k in ((2, 1), (3, 2), (4, 4), (8, 8))},
    **{f"all_gather of {p}{' in place' * place}": all_gather(p, place) for p in (2, 5) for place in (True, False)},
    "all_to_all of 2x2": re.sub("<!--.*?-->", "", WRITTEN, flags=re.DOTALL),  # so that its steps are read
}


Content = Counter[tuple[int, int]]
"""(rank, chunk of its input) -> how often it was added."""


def file_is_right(text: str, table: Schedule, seed: int) -> bool:
    """Run a file once, in any order. Do all its thread blocks end, with the right result? table: what was read."""
    root, draw = ET.fromstring(text), random.Random(seed)  # noqa: S314  it is our own text
    promise, block = contract(table), table.chunks // table.ranks
    memory: dict[tuple[int, str, int], Content] = defaultdict(Counter)

    def place(gpu: int, letter: str, chunk: int) -> tuple[int, str, int]:
        if letter in "io":
            blocked = table.collective in (ONE_IN if letter == "i" else ONE_OUT)
            chunk += gpu * block * blocked
            letter = "i" if table.result == X else letter
        return gpu, letter, chunk

    for (rank, _, chunk), (origin, _) in promise.before.items():
        memory[rank, "i", chunk][rank, origin] += 1
    channels: dict[tuple[int, int, int], deque[list[Content]]] = defaultdict(deque)
    blocks = {(int(gpu.get("id", "")), int(one.get("id", ""))): (one, [*one]) for gpu in root for one in gpu}
    done = dict.fromkeys(blocks, 0)
    told = dict.fromkeys(blocks, -1)

    def take(key: tuple[int, int]) -> bool:
        """Take the next step of a thread block, if nothing holds it up."""
        (gpu, _), (of, steps) = key, blocks[key]
        if done[key] == len(steps):
            return False
        step: Any = steps[done[key]].attrib
        if int(step["depid"]) >= 0 and told[gpu, int(step["depid"])] < int(step["deps"]):
            return False
        kind, many, chan = step["type"], int(step["cnt"]), int(of.get("chan", ""))
        came: list[Content] = []
        if kind.startswith("r") and kind != "re":
            queue = channels[int(of.get("recv", "")), gpu, chan]
            if not queue:
                return False
            came = queue.popleft()
        source, target = (
            [place(gpu, step[f"{end}buf"], int(step[f"{end}off"]) + k) for k in range(many)] for end in ("src", "dst")
        )
        values = came or [Counter(memory[slot]) for slot in source]
        if kind in ("rrc", "rrs", "rrcs"):
            values = [a + memory[slot] for a, slot in zip(came, source, strict=True)]
        elif kind == "re":
            values = [a + memory[slot] for a, slot in zip(values, target, strict=True)]
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            for slot, value in zip(target, values, strict=True):
                memory[slot] = Counter(value)
        if kind in ("s", "rcs", "rrs", "rrcs"):
            channels[gpu, int(of.get("send", "")), chan].append(values)
        if step["hasdep"] == "1":
            told[key] = done[key]
        done[key] += 1
        return True

    while any(take(key) for key in draw.sample([*blocks], len(blocks))):
        pass
    out = "o" if table.result == Y else "i"
    return all(done[key] == len(steps) for key, (_, steps) in blocks.items()) and all(
        memory[rank, out, chunk] == Counter((other, origin) for other in ranks_in(who))
        for (rank, _, chunk), (origin, who) in promise.after.items()
    )
