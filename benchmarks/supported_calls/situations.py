"""Tries with unusual layouts, shapes and sizes, and with calls in which the ranks disagree."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .library import Library

_TOTAL = 3 * torch.arange(6.0) + 30
"""The sum of what three ranks pass: 0 to 5, 10 to 15, 20 to 25."""


def _filled(library: Library, count: int = 6) -> torch.Tensor:
    return torch.arange(count) + 10.0 * library.rank


def _all_reduce(library: Library, x: torch.Tensor) -> bool:
    x.copy_(_filled(library).view(x.shape))
    library.perform("all_reduce", x)
    return torch.equal(x, _TOTAL.view(x.shape))


def _broadcast(library: Library, x: torch.Tensor) -> bool:
    x.copy_(_filled(library).view(x.shape))
    library.perform("broadcast", x)
    return torch.equal(x, torch.arange(6.0).view(x.shape))


def _conjugate(library: Library) -> bool:
    x = torch.complex(_filled(library), torch.ones(6))
    x = x.conj() if library.rank == 0 else x
    library.perform("broadcast", x)
    return torch.equal(x.resolve_conj(), torch.complex(torch.arange(6.0), -torch.ones(6)))


def _all_gather(library: Library, y: torch.Tensor) -> bool:
    library.perform("all_gather", _filled(library, 2), y)
    return y.flatten().tolist() == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]


def _leaf(library: Library) -> bool:
    x = _filled(library).requires_grad_()
    library.perform("all_reduce", x)
    return x.requires_grad and x.is_leaf and torch.equal(x.detach(), _TOTAL)


def _uneven(library: Library, known: bool) -> bool:
    blocks = [torch.zeros(count) for count in (1, 2, 3)] if known else None
    got = library.gather_blocks(blocks, _filled(library, 1 + library.rank))
    return [block.tolist() for block in got] == [[0.0], [10.0, 11.0], [20.0, 21.0, 22.0]]


def _disagree(call: Callable[[Library, bool], None]) -> Callable[[Library], bool]:
    """A call that rank 0 makes otherwise than the rest. It has no right result: all ranks should raise."""

    def attempt(library: Library) -> bool:
        call(library, library.rank == 0)
        return False

    return attempt


SITUATIONS: dict[str, Callable[[Library], bool]] = {
    "all_reduce of transposed tensors": lambda lib: _all_reduce(lib, torch.zeros(3, 2).t()),
    "all_reduce of every second element": lambda lib: _all_reduce(lib, torch.zeros(12)[::2]),
    "all_reduce of a leaf that requires grad": _leaf,
    "broadcast of every second element": lambda lib: _broadcast(lib, torch.zeros(12)[::2]),
    "broadcast, transposed on rank 0 only": lambda lib: _broadcast(
        lib, torch.zeros(2, 3) if lib.rank else torch.zeros(3, 2).t()
    ),
    "broadcast of a conjugate view": _conjugate,
    "all_gather into a transposed tensor": lambda lib: _all_gather(lib, torch.zeros(2, 3).t()),
    "all_reduce, shapes differ, counts do not": lambda lib: _all_reduce(lib, torch.zeros((6,) if lib.rank else (2, 3))),
    "all_gather of 1, 2 and 3 elements": lambda lib: _uneven(lib, known=True),
    "all_gather, sizes not known": lambda lib: _uneven(lib, known=False),
    "all_reduce, counts differ": _disagree(lambda lib, odd: lib.perform("all_reduce", _filled(lib, 1000 + odd))),
    "all_reduce, dtypes differ": _disagree(
        lambda lib, odd: lib.perform("all_reduce", _filled(lib).to(torch.int32 if odd else torch.float32))
    ),
    "all_reduce, ops differ": _disagree(
        lambda lib, odd: lib.perform("all_reduce", _filled(lib), op="max" if odd else "sum")
    ),
    "broadcast, roots differ": _disagree(lambda lib, odd: lib.perform("broadcast", _filled(lib), root=0 if odd else 1)),
    "all_reduce here, broadcast there": _disagree(
        lambda lib, odd: lib.perform("all_reduce" if odd else "broadcast", _filled(lib))
    ),
}
"""What is tried -> whether it is right."""
