"""Prove a call over many hosts by its parts, where the whole table would have too many rows.

Every part keeps the contract of its collective. The proof of its table shows it, once for all parts with the same
table. Then the parts are run by their contracts alone, chunk by chunk, from what each rank has at first. The outcome
must be what the whole promises, and parts at the same time must not touch the same chunk of a rank.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from ....base.errors import AlgorithmError
from ...contract import BLOCKED, HOLDERS, Fault
from ...proofs.large_proofs import prove_by_fingerprints, prove_symmetric
from ...proofs.table_proof import Proof, prove
from ...table import N, X
from .whole import HierarchicalTable, Part

_MOST_MOVED = 100_000  # the table of a part is proved exactly if it moves no more chunks than this
_SAMPLE = 64  # the number of chunks that are followed through the parts, where more than this go different ways

_Steps = list[list[tuple[Part, int]]]
"""The way of a chunk, phase by phase: the parts that have it, and in which of their blocks."""


def prove_by_parts(call: HierarchicalTable) -> tuple[Proof, tuple[Proof, ...]]:
    """The proof of the whole, and the proofs of its parts' tables, each once.

    The whole is proved by "parts", or by "sampled parts" if not all chunks were followed. Raises AlgorithmError.
    """
    every = [*call.before, *call.across, *call.after]
    tables = {(part.collective, part.name, len(part.members), part.root): part for part in every}
    proofs = tuple(map(_proof, tables.values()))
    if call.collective == "all_to_all":
        _check_pairs(call)
        method = "parts"
    else:
        ways = _ways(call)
        chosen = np.random.default_rng(0).permutation(ways)[:_SAMPLE].tolist()
        for chunk, steps in _steps(call, chosen).items():
            _follow(call, chunk, steps)
        method = "parts" if len(ways) <= _SAMPLE else "sampled parts"
    same = None
    if call.collective == "all_reduce":
        legs = [proof.same_bits for part, proof in zip(tables.values(), proofs, strict=True) if part in call.across]
        same = None if None in legs else all(legs)
    return Proof(f"{call.collective}.spanning", call.hosts.ranks, call.rounds, method, same), proofs


def _proof(part: Part) -> Proof:
    """The proof of a part's table: exact, unless it is large, or lacks the rows inside hosts."""
    if part.apart is None and part.table.rows[:, N].sum() <= _MOST_MOVED:
        return prove(part.table)
    one = part.symmetric
    return prove_by_fingerprints(part.table) if one is None else prove_symmetric(one)


def _ways(call: HierarchicalTable) -> list[int]:
    """One chunk of each kind: chunks of one kind are in the same blocks of all parts, and have one owner."""
    blocks = {id(block): block for part in (*call.before, *call.across, *call.after) for block in part.blocks}
    seen: dict[int, list[int]] = {chunk: [] for chunk in range(call.chunks)}
    for number, block in blocks.items():
        for chunk in block:
            seen[chunk].append(number)
    kinds = {(tuple(where), chunk if call.collective in BLOCKED else 0): chunk for chunk, where in seen.items()}
    return list(kinds.values())


def _steps(call: HierarchicalTable, chunks: Iterable[int]) -> Mapping[int, _Steps]:
    wanted = set(chunks)
    found: dict[int, _Steps] = {chunk: [[], [], []] for chunk in wanted}
    hits: dict[int, list[int]] = {}
    for phase, parts in enumerate((call.before, call.across, call.after)):
        for part in parts:
            for index, block in enumerate(part.blocks):
                if id(block) not in hits:
                    hits[id(block)] = [chunk for chunk in block if chunk in wanted]
                for chunk in hits[id(block)]:
                    found[chunk][phase].append((part, index))
    return found


def _follow(call: HierarchicalTable, chunk: int, steps: _Steps) -> None:
    """Run the parts that have a chunk, each by its contract."""
    start, end = HOLDERS.get(call.collective, ("all", "all"))
    everybody, alone = range(call.hosts.ranks), {"root": [call.root], "owner": [chunk]}
    # Rank -> the ranks whose contributions its copy has, as bits. A rank whose copy has no more use is left out.
    held = {rank: 1 << rank for rank in alone.get(start, everybody)}
    for parts in steps:
        touched: set[int] = set()
        after: dict[int, int] = {}
        for part, index in parts:
            if not touched.isdisjoint(part.members):
                raise _fault(call, chunk, "two parts at the same time have it on one rank")
            touched.update(part.members)
            after |= _contract(call, part, index, chunk, held)
        held = {rank: value for rank, value in held.items() if rank not in touched} | after
    whole = 0
    for rank in alone.get(start, everybody):
        whole |= 1 << rank
    for rank in alone.get(end, everybody):
        if held.get(rank) != whole:
            raise _fault(call, chunk, f"rank {rank} ends without each part of it exactly once")


def _contract(call: HierarchicalTable, part: Part, index: int, chunk: int, held: Mapping[int, int]) -> dict[int, int]:
    """Member -> what it holds of a chunk of a block once the part has ended."""
    start, end = HOLDERS.get(part.collective, ("all", "all"))
    places = {"all": part.members, "root": (part.members[part.root],), "owner": part.members[index : index + 1]}
    value = 0
    for rank in places[start]:
        mine = held.get(rank, 0)
        if not mine:
            raise _fault(call, chunk, f"{part.table.name} takes it from rank {rank}, which holds nothing of use")
        if mine & value and call.collective != "barrier":
            raise _fault(call, chunk, f"{part.table.name} counts a rank twice")
        value |= mine
    return dict.fromkeys(places[end], value)


def _check_pairs(call: HierarchicalTable) -> None:
    """An all_to_all goes straight: within a host in the part `after`, between hosts in the part `across`."""
    hosts = call.hosts
    everybody = [tuple(range(hosts.ranks))] if hosts.spans or hosts.ranks == 1 else []
    straight = all(part.blocks == tuple((rank,) for rank in part.members) for part in (*call.across, *call.after))
    apart = all(part.apart == hosts for part in call.across) and all(part.apart is None for part in call.after)
    many = [host for host in hosts.members if len(host) > 1]
    across, inside = [part.members for part in call.across], [part.members for part in call.after]
    if call.before or not straight or not apart or across != everybody or inside != many:
        raise AlgorithmError(Fault(call.collective, call.collective, "a pair of ranks is in no part, or in two"))


def _fault(call: HierarchicalTable, chunk: int, reason: str) -> AlgorithmError:
    name = f"{call.collective}.spanning"
    return AlgorithmError(Fault(name, call.collective, f"of chunk {chunk}: {reason}", slot=(0, X, chunk)))
