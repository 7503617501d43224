"""How a tensor of n elements can lie in memory: as a view of some memory, whose other elements are guards."""

from collections.abc import Callable

import torch

import unisono
from tests.support.reducers_driver import bits, name_of, pattern
from unisono.engine.reducers import DTYPES

VIEWS: dict[str, tuple[Callable[[int], int], Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "contiguous": (lambda n: n, lambda memory, n: memory),
    "offset": (lambda n: n + 8, lambda memory, n: memory[5 : 5 + n]),
    "strided": (lambda n: 2 * n + 1, lambda memory, n: memory[1::2]),
    "transposed": (lambda n: n, lambda memory, n: memory.view(rows(n), n // rows(n)).t()),
    # Shape (1, rows, n / rows, 1), whose second dimension lies closest together.
    "channels_last": (lambda n: n, lambda memory, n: memory.view(1, n // rows(n), 1, rows(n)).permute(0, 3, 1, 2)),
    "scalar": (lambda n: 1, lambda memory, n: memory.view(())),
    "empty": (lambda n: 0, lambda memory, n: memory.view(0, 3)),
    "leaf": (lambda n: n, lambda memory, n: memory),
    "expanded": (lambda n: n // rows(n), lambda memory, n: memory.expand(rows(n), n // rows(n))),
    "conjugate": (lambda n: n, lambda memory, n: memory),
    "negative": (lambda n: 2 * n, lambda memory, n: memory[1::2]),
}
"""Elements of the memory, and the view of it; `Held` makes a conjugate or negative view of that, or a leaf."""

LAYOUTS = (*VIEWS, "mixed")  # mixed: another one for every tensor and rank

READ_ONLY = ("expanded", "conjugate", "negative")
_MIXED = ("strided", "contiguous", "transposed", "offset", "expanded", "channels_last")

_BEHIND = 64  # bytes behind each tensor's memory that are guards, too


def rows(n: int) -> int:
    """In how many rows of one length n elements can be laid: their smallest divisor from 2 to 7, or else one."""
    return next((k for k in (2, 3, 5, 7) if n % k == 0), 1)


def exists(layout: str, dtype: str) -> bool:
    """Can a tensor of this dtype lie like this?"""
    kind = getattr(torch, dtype)
    if layout == "conjugate":
        return dtype in ("complex64", "complex128")
    if layout == "leaf":
        return bool(kind.is_complex or kind.is_floating_point)
    return layout != "negative" or dtype in ("float32", "float64")


def pick(layout: str, number: int, n: int, written: bool) -> str:
    """The layout of one tensor in a call; contiguous, where the call's is not for this one."""
    if layout == "mixed":
        layout = _MIXED[number % len(_MIXED)]
    return "contiguous" if (written and layout in READ_ONLY) or (layout == "scalar" and n != 1) else layout


def readable(values: torch.Tensor, layout: str) -> torch.Tensor:
    """These values as a tensor of this layout can hold them: an expanded one repeats its first row."""
    n = len(values)
    return bits(values)[: n // rows(n)].repeat(rows(n)).view(values.dtype) if layout == "expanded" else values


class Held:
    """A tensor of n elements in one of VIEWS, which holds these values, or rubbish."""

    def __init__(self, layout: str, n: int, dtype: torch.dtype, shared: bool, values: torch.Tensor | None) -> None:
        length, view = VIEWS[layout][0](n), VIEWS[layout][1]
        nbytes = length * dtype.itemsize
        self._bytes = (unisono.empty if shared else torch.empty)(nbytes + _BEHIND, dtype=torch.uint8)
        self._memory = self._bytes[:nbytes].view(dtype)
        rubbish = torch.arange(77, 77 + nbytes + _BEHIND).to(torch.uint8)
        self._bytes.copy_(rubbish % 2 if dtype is torch.bool else rubbish)
        self.tensor = view(self._memory, n)
        if layout == "conjugate":
            self.tensor = self.tensor.conj()
        elif layout == "negative":
            self.tensor = torch.view_as_complex(self._memory.view(n, 2)).conj().imag
        if values is not None and layout in ("conjugate", "negative"):
            self.tensor.copy_(values)
        elif values is not None and layout == "expanded":
            bits(self._memory).copy_(bits(values)[:length])
        elif values is not None:
            bits(self.tensor).copy_(bits(values).view(self.tensor.shape))
        self._leaf = layout == "leaf"
        self.tensor.requires_grad_(self._leaf)
        self._around = torch.ones(length if length > n else 0, dtype=torch.bool)
        if length > n:
            self._around[view(torch.arange(length), n)] = False
        self._before, self._nbytes = self._bytes.clone(), nbytes

    def check(self, want: torch.Tensor | None) -> str:
        """What is wrong: other values than wanted (None: than before), or other guards. Nothing, if all is right."""
        if want is None:
            return "" if torch.equal(self._bytes, self._before) else "what is only read has changed"
        if not torch.equal(self._bytes[self._nbytes :], self._before[self._nbytes :]):
            return "bytes behind it have changed"
        if len(self._around):
            memories = self._bytes[: self._nbytes], self._before[: self._nbytes]
            now, before = (raw.view(len(self._around), -1)[self._around] for raw in memories)
            if not torch.equal(now, before):
                return "elements around it have changed"
        if not self.tensor.is_leaf or self.tensor.requires_grad != self._leaf:
            return "it is no such leaf as before"
        return differs(self.tensor, want)


def differs(got: torch.Tensor, want: torch.Tensor) -> str:
    """How two tensors differ in dtype or values, in words, or nothing. Shapes do not matter; any NaN is a NaN."""
    if got.dtype != want.dtype or got.numel() != want.numel():
        return f"is {got.dtype} of {got.numel()} elements, not {want.dtype} of {want.numel()}"
    x, y = pattern(got), pattern(want)
    wrong = (x != y).any(1).nonzero().flatten().tolist()
    if not wrong:
        return ""
    k = wrong[0]
    known = name_of(got) in DTYPES  # torch can hardly do more than move others
    shown = [f"{t.reshape(-1)[k].item() if known else 'bytes'} {raw[k].tolist()}" for t, raw in ((got, x), (want, y))]
    return f"{len(wrong)} of {len(x)} elements differ, first [{k}]: {shown[0]} instead of {shown[1]}"
