"""What the formats have in common: steps of thread blocks, the elements of files, and how errors name them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...base.errors import AlgorithmError, ArgumentError
from ..contract import Fault, Slot
from ..table import COPY, T

FLIGHT = T + 1
"""The buffer of slots that no rank has: content under way, and sums that are passed on without being kept."""

MOST_CHUNKS = 1 << 20
"""The most chunks of all gpus in a file that is read. No number in a file is larger."""


@dataclass(eq=False)
class Step:
    """One step of a thread block.

    gpu, block, number: which step it is.
    moves: (source, target, op) for each chunk, in order.
    after: the indices of the steps that come before it.
    """

    gpu: int
    block: int
    number: int
    moves: list[tuple[Slot, Slot, int]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return f"gpu {self.gpu}, thread block {self.block}, step {self.number}"

    @property
    def sends(self) -> bool:
        """It only sends. A row of the table is its receiver's."""
        return bool(self.moves) and all(target[1] == FLIGHT and op == COPY for _, target, op in self.moves)

    def uses(self) -> dict[Slot, bool]:
        """The slots of ranks that it uses, and whether it writes them."""
        used: dict[Slot, bool] = {}
        for source, target, _ in self.moves:
            used.setdefault(source, False)
            used[target] = True
        return {slot: writes for slot, writes in used.items() if slot[1] != FLIGHT}


class Part:
    """An element of a file, and its place, for errors."""

    def __init__(self, of: Any, path: str, place: str = "") -> None:
        self.path, self.place = path, place
        if not isinstance(of, dict):
            raise self.wrong(f"got {str(of)[:40]}, expected an object")
        self.of: dict[str, Any] = of

    def wrong(self, reason: str) -> ArgumentError:
        return ArgumentError(f"{self.path}: {self.place}: {reason}" if self.place else f"{self.path}: {reason}")

    def broken(self, collective: str, reason: str) -> AlgorithmError:
        return AlgorithmError(Fault("the file", collective, reason, line=f"{self.path}: {self.place}"))

    def number(self, name: str, default: int | None = None, *, least: int = 0, below: int = MOST_CHUNKS) -> int:
        found = self.of.get(name, default)
        try:
            number = int(found) if isinstance(found, str) else found
        except ValueError:
            number = None
        if type(number) is not int or not least <= number < below:
            raise self._unfit(name, f"a whole number from {least} to {below - 1}")
        return number

    def word(self, name: str, known: Collection[str]) -> str:
        found = self.of.get(name)
        if not isinstance(found, str) or found not in known:
            raise self._unfit(name, f"one of {', '.join(sorted(known))}")
        return found

    def numbers(self, name: str, below: int) -> list[int]:
        """The numbers in a list."""
        found = self._list(name)
        if any(type(number) is not int or not 0 <= number < below for number in found):
            raise self._unfit(name, f"a list of numbers from 0 to {below - 1}")
        return found

    def parts(self, name: str, noun: str, *, by: str = "") -> Iterator["Part"]:
        """The elements in a list. by: the attribute that has the number of each; else they are counted."""
        for count, of in enumerate(self._list(name)):
            number = of.get(by, count) if isinstance(of, dict) else count
            yield Part(of, self.path, f"{self.place}, {noun} {number}".removeprefix(", "))

    def _list(self, name: str) -> list[Any]:
        found = self.of.get(name, [])
        if not isinstance(found, list):
            raise self._unfit(name, "a list")
        return found

    def _unfit(self, name: str, wanted: str) -> ArgumentError:
        has = f"is {repr(self.of[name])[:40]}" if name in self.of else "is missing"
        return self.wrong(f"{name} {has}, expected {wanted}")

    def combine(self, step: Step, sources: Sequence[list[Slot]], targets: Sequence[list[Slot]], add: int) -> None:
        """Let a step put the sum of these sources, in order, into each target."""
        if not sources or not targets or len({*map(len, (*sources, *targets))}) > 1:
            raise self.wrong("its sources and targets have different sizes")
        if any(source != target and set(source) & set(target) for source in sources for target in targets):
            raise self.wrong("its source and target overlap. Use each chunk once.")
        for k, (first, *others) in enumerate(zip(*sources, strict=True)):
            total = targets[0][k]
            if others and (total[1] == FLIGHT or total in others):
                total = step.gpu, FLIGHT, (id(step), k)  # type: ignore[assignment]
            moves = [(first, total, COPY)] + [(other, total, add) for other in others]
            moves += [(total, target[k], COPY) for target in targets]
            step.moves += [move for move in moves if move[0] != move[1]]
