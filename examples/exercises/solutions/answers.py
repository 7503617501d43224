"""One solution of each exercise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..net import Net


def naive_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Each rank sends its vector to rank 0, which adds them up, and sends the sum to all."""
    if net.rank == 0:
        got = torch.empty_like(x)
        for peer in range(1, net.ranks):
            net.recv(got, peer)
            x += got
        for peer in range(1, net.ranks):
            net.send(x, peer)
    else:
        net.send(x, 0)
        net.recv(x, 0)


def ring_reduce_scatter(net: Net, x: torch.Tensor) -> None:
    """Partial sums of chunks travel round, until the sum of chunk r is whole at rank r."""
    r, p = net.rank, net.ranks
    chunks = x.tensor_split(p)
    for step in range(1, p):
        sending = net.isend(chunks[(r - step) % p], (r + 1) % p)
        mine = chunks[(r - step - 1) % p]
        got = torch.empty_like(mine)
        net.recv(got, (r - 1) % p)
        mine += got
        sending.wait()


def ring_all_gather(net: Net, x: torch.Tensor) -> None:
    """Rank r has chunk r. Chunks travel round, until all ranks have all of them."""
    r, p = net.rank, net.ranks
    chunks = x.tensor_split(p)
    for step in range(p - 1):
        sending = net.isend(chunks[(r - step) % p], (r + 1) % p)
        net.recv(chunks[(r - step - 1) % p], (r - 1) % p)
        sending.wait()


def ring_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Both rings, one after the other."""
    ring_reduce_scatter(net, x)
    ring_all_gather(net, x)


def tree_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Sums go up a binomial tree to rank 0, and the whole sum goes down again."""
    r, p = net.rank, net.ranks
    got, k = torch.empty_like(x), 1
    while k < p:
        if r & k:
            net.send(x, r - k)
            break
        if r + k < p:
            net.recv(got, r + k)
            x += got
        k *= 2
    if r:
        net.recv(x, r - k)
    while k > 1:
        k //= 2
        if r + k < p:
            net.send(x, r + k)


def pipeline_broadcast(net: Net, x: torch.Tensor) -> None:
    """The vector of rank 0 goes from rank to rank in 8 pieces; each is passed on while the next one comes."""
    sent = []
    for piece in x.tensor_split(8):
        if net.rank > 0:
            net.recv(piece, net.rank - 1)
        if net.rank + 1 < net.ranks:
            sent.append(net.isend(piece, net.rank + 1))
    for sending in sent:
        sending.wait()


def bruck_all_gather(net: Net, x: torch.Tensor) -> None:
    """Rank r has chunk r, and gets those that follow: twice as many each round, and in the last round the rest."""
    r, p = net.rank, net.ranks
    chunks = x.tensor_split(p)
    have = 1
    while have < p:
        many = min(have, p - have)
        coming = [chunks[(r + have + i) % p] for i in range(many)]
        got = torch.cat(coming)
        sending = net.isend(torch.cat([chunks[(r + i) % p] for i in range(many)]), (r - have) % p)
        net.recv(got, (r + have) % p)
        for chunk, part in zip(coming, got.split([len(chunk) for chunk in coming]), strict=True):
            chunk.copy_(part)
        sending.wait()
        have *= 2


def halving_doubling_all_reduce(net: Net, x: torch.Tensor) -> None:
    """Pairs swap halves of what they sum, far ones first; then they swap whole sums. For powers of two only."""
    chunks = x.tensor_split(net.ranks)
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk))
    low, high, k = 0, net.ranks, net.ranks // 2
    while k:
        middle, peer = low + k, net.rank ^ k
        upper, lower = x[starts[middle] : starts[high]], x[starts[low] : starts[middle]]
        mine, its = (upper, lower) if net.rank & k else (lower, upper)
        sending, got = net.isend(its, peer), torch.empty_like(mine)
        net.recv(got, peer)
        mine += got
        sending.wait()
        low, high = (middle, high) if net.rank & k else (low, middle)
        k //= 2
    k = 1
    while k < net.ranks:
        low = net.rank & -k
        there = low ^ k
        sending = net.isend(x[starts[low] : starts[low + k]], net.rank ^ k)
        net.recv(x[starts[there] : starts[there + k]], net.rank ^ k)
        sending.wait()
        k *= 2


def scatter_all_gather_broadcast(net: Net, x: torch.Tensor) -> None:
    """Rank 0 hands half of its chunks on, both do the same with what they have, and an all_gather follows."""
    first, past = 0, net.ranks
    chunks = x.tensor_split(net.ranks)
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk))
    while past - first > 1:
        middle = (first + past + 1) // 2
        if net.rank == first:
            net.send(x[starts[middle] : starts[past]], middle)
        elif net.rank == middle:
            net.recv(x[starts[middle] : starts[past]], first)
        first, past = (first, middle) if net.rank < middle else (middle, past)
    bruck_all_gather(net, x)


def pairwise_all_to_all(net: Net, x: torch.Tensor) -> None:
    """Chunk s goes to rank s, and what rank s sends takes its place: in round k to the rank k after this one."""
    r, p = net.rank, net.ranks
    old, new = x.clone().tensor_split(p), x.tensor_split(p)
    for k in range(1, p):
        sending = net.isend(old[(r + k) % p], (r + k) % p)
        net.recv(new[(r - k) % p], (r - k) % p)
        sending.wait()


def hillis_steele_scan(net: Net, x: torch.Tensor) -> None:
    """Rank r gets the sum of the ranks 0 to r: in each round from twice as far away."""
    k = 1
    while k < net.ranks:
        sending = net.isend(x.clone(), net.rank + k) if net.rank + k < net.ranks else None
        if net.rank >= k:
            got = torch.empty_like(x)
            net.recv(got, net.rank - k)
            x += got
        if sending:
            sending.wait()
        k *= 2


def dissemination_barrier(net: Net, x: torch.Tensor) -> None:
    """No rank returns before all have begun: each signals the rank k after it, with k doubled each round."""
    k = 1
    while k < net.ranks:
        sending = net.isend(x, (net.rank + k) % net.ranks)
        net.recv(torch.empty_like(x), (net.rank - k) % net.ranks)
        sending.wait()
        k *= 2
