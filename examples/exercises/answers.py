"""Your answers. Each is a function that a rank runs on its vector x, in place. Its result is not used.

net.rank and net.ranks: this rank and the number of ranks.
net.send(tensor, dst), net.recv(tensor, src): a send waits for its receive.
net.isend(tensor, dst): returns at once; do not change the tensor until `wait()` of the result has returned.

Chunk r of a vector is x.tensor_split(net.ranks)[r], a view: chunks are as long as each other, or differ by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .net import Net


def naive_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Each rank sends its vector to rank 0, which adds them up, and sends the sum to all."""
    raise NotImplementedError


def ring_reduce_scatter(net: Net, x: torch.Tensor) -> None:
    """Partial sums of chunks travel round, until the sum of chunk r is whole at rank r."""
    raise NotImplementedError


def ring_all_gather(net: Net, x: torch.Tensor) -> None:
    """Rank r has chunk r. Chunks travel round, until all ranks have all of them."""
    raise NotImplementedError


def ring_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Both rings, one after the other."""
    raise NotImplementedError


def tree_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Sums go up a binomial tree to rank 0, and the whole sum goes down again."""
    raise NotImplementedError


def pipeline_broadcast(net: Net, x: torch.Tensor) -> None:
    """The vector of rank 0 goes from rank to rank in 8 pieces; each is passed on while the next one comes."""
    raise NotImplementedError


def bruck_all_gather(net: Net, x: torch.Tensor) -> None:
    """Rank r has chunk r, and gets those that follow: twice as many each round, and in the last round the rest."""
    raise NotImplementedError


def halving_doubling_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Pairs swap halves of what they sum, far ones first; then they swap whole sums. For powers of two only."""
    raise NotImplementedError


def scatter_all_gather_broadcast(net: Net, x: torch.Tensor) -> None:
    """Rank 0 hands half of its chunks on, both do the same with what they have, and an all_gather follows."""
    raise NotImplementedError


def pairwise_all_to_all(net: Net, x: torch.Tensor) -> None:
    """Chunk s goes to rank s, and what rank s sends takes its place: in round k to the rank k after this one."""
    raise NotImplementedError


def hillis_steele_scan(net: Net, x: torch.Tensor) -> None:
    """Rank r gets the sum of the ranks 0 to r: in each round from twice as far away."""
    raise NotImplementedError


def dissemination_barrier(net: Net, x: torch.Tensor) -> None:
    """No rank returns before all have begun: each signals the rank k after it, with k doubled each round."""
    raise NotImplementedError
