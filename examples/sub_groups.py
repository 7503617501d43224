"""Groups of some ranks: the rows and columns of a grid of ranks multiply two matrices that no rank has as a whole.

Every rank holds one block of A, of B and of C = A B. In step k the k-th rank of each row gives its block of A to the
row, the k-th rank of each column its block of B to the column, and every rank adds their product to its block of C
(SUMMA, van de Geijn and Watts 1997).

    python examples/sub_groups.py
"""

from __future__ import annotations

import torch

import unisono
from unisono import get_process_group_ranks, new_group, split

SIDE, BLOCK = 2, 3


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    """A and B: the same on every rank, which takes its blocks of them. Small integers, so that sums are exact."""
    a = torch.arange((SIDE * BLOCK) ** 2).view(SIDE * BLOCK, SIDE * BLOCK) % 7
    return a, a.T + 1


def block(matrix: torch.Tensor, row: int, column: int) -> torch.Tensor:
    """A copy of the block that the rank in this row and column holds."""
    return matrix.chunk(SIDE)[row].chunk(SIDE, dim=1)[column].clone()


def work() -> tuple[list[int], list[int], torch.Tensor, int | None]:
    """This rank's row and column, its block of the product, and on the diagonal the trace of the product."""
    i, j = divmod(unisono.get_rank(), SIDE)
    row = split(color=i)  # all ranks that name the same color; their order stays
    column = split(color=j)
    a, b = (block(matrix, i, j) for matrix in matrices())
    c = torch.zeros_like(a)
    for k in range(SIDE):
        from_row, from_column = a.clone(), b.clone()
        unisono.broadcast(from_row, src=k, group=row)  # k is a rank of the group
        unisono.broadcast(from_column, src=k, group=column)
        c += from_row @ from_column
    diagonal = new_group([rank * (SIDE + 1) for rank in range(SIDE)])  # by name: every rank calls it
    trace = c.trace()
    if diagonal:  # false for those it leaves out, who must not call it
        unisono.all_reduce(trace, group=diagonal)
    return get_process_group_ranks(row), get_process_group_ranks(column), c, int(trace) if diagonal else None


a, b = matrices()
for rank, (row, column, c, trace) in enumerate(unisono.run(work, ranks=SIDE**2)):
    right = torch.equal(c, block(a @ b, *divmod(rank, SIDE)))
    print(f"rank {rank}: row {row}, column {column}, its block is {'right' if right else 'wrong'}, trace {trace}")
print(f"the trace of the whole product is {(a @ b).trace()}")
