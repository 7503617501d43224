"""MSCCL's interpreter on sets: thread blocks of all gpus take steps in a random order, as its kernels may."""

import random
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque
from typing import Any

from unisono.schedule import ONE_IN, ONE_OUT, Schedule, X, Y
from unisono.schedule.contract import contract

Content = Counter[tuple[int, int]]
"""(rank, chunk of its input) -> how often it was added."""


def interpret(text: str, table: Schedule, seed: int) -> list[str]:
    """Run a file once; return who waits for ever, and wrong results. table: what the file was read as."""
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
    blocks: dict[tuple[int, int], tuple[ET.Element, list[ET.Element]]] = {}
    for gpu in root:
        for one in gpu:
            blocks[int(gpu.get("id", "")), int(one.get("id", ""))] = one, list(one)
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
        if kind in ("s", "cpy", "rrc", "rrs", "rrcs", "re"):
            values = [Counter(memory[slot]) for slot in source]
        if kind in ("rrc", "rrs", "rrcs"):
            values = [a + b for a, b in zip(values, came, strict=True)]
        elif kind == "re":
            values = [a + memory[slot] for a, slot in zip(values, target, strict=True)]
        elif kind in ("r", "rcs"):
            values = came
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            for slot, value in zip(target, values, strict=True):
                memory[slot] = Counter(value)
        if kind in ("s", "rcs", "rrs", "rrcs"):
            channels[gpu, int(of.get("send", "")), chan].append(values)
        if step["hasdep"] == "1":
            told[key] = done[key]
        done[key] += 1
        return True

    while True:
        keys = list(blocks)
        draw.shuffle(keys)
        if not any(take(key) for key in keys):
            break
    wrong = [f"gpu {gpu}, thread block {one} waits" for (gpu, one), at in done.items() if at < len(blocks[gpu, one][1])]
    out = "o" if table.result == Y else "i"
    for (rank, _, chunk), (origin, who) in promise.after.items():
        want = {(other, origin): 1 for other in range(table.ranks) if who >> other & 1}
        if memory[rank, out, chunk] != Counter(want):
            wrong.append(f"rank {rank}, chunk {chunk}: {memory[rank, out, chunk]}")
    return wrong
