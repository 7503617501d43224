"""Mistakes that have been mended, each as a change of a file that makes it again."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake. file: below src/unisono. tests: at least one of these, of the ring, must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    ring: str = "test"


MUTANTS = [
    Mutant(
        "a lane copies the first piece in place of its own",
        "engine/kernels/lanes.py",
        " + k * piece * get(plan, PlanWord.ITEM)",
        "",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "the last piece of a move is as long as the others",
        "engine/kernels/lanes.py",
        "min(piece, get(lanes, LaneWord.COUNT) - k * piece)",
        "piece",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "the rest of a move that does not divide is left out",
        "engine/kernels/lanes.py",
        "pieces = (n + piece - 1) // piece",
        "pieces = n // piece",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "a move ends before the helpers have finished their pieces",
        "engine/kernels/lanes.py",
        "while load_acquire(lanes + 8 * LaneWord.FINISHED) < due:",
        "while load_acquire(lanes + 8 * LaneWord.FINISHED) < due - pieces:",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "two calls share moves at the same time",
        "engine/kernels/lanes.py",
        "if swap(lanes + 8 * LaneWord.BUSY, 1) != 0:",
        "if swap(lanes + 8 * LaneWord.BUSY, 1) > 1:",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "a move fails because an earlier one has failed",
        "engine/kernels/lanes.py",
        "    put(lanes, LaneWord.STATUS, DONE)\n",
        "",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "ranks of other groups count as idle",
        "schedule/choose/lane_limits.py",
        "busy = movers + neighbours - ranks",
        "busy = movers",
        ("engine/test_lanes.py",),
    ),
    Mutant(
        "a rank decides by what only its own host knows, which may be lost",
        "hosts/sentinel/board_replicas.py",
        " or any(of == gid for _, of, _ in self._unread)",
        "",
        ("hosts/sentinel/test_machine.py",),
        "quick",
    ),
    Mutant(
        "a rank that shrinks a group votes for what it wants, not for what may have been decided",
        "ranks/group/agreement.py",
        "choice=last.choice if last.voted else mine.failed",
        "choice=mine.failed",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "a rank that shrinks a group decides though another one has begun a later ballot",
        "ranks/group/agreement.py",
        "if mine.ballot < newest or not mine.ballot:",
        "if not mine.ballot:",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "a rank that shrinks a group begins a ballot before all members have its memory",
        "ranks/group/agreement.py",
        "if not all(member is not None and member.ready for member in members):",
        "if False:",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "a rank counts as ready for a group of which it has not got the memory",
        "ranks/group/agreement.py",
        "mine._replace(failed=failed, ready=False)",
        "mine._replace(failed=failed)",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "two ranks have ballots of one number",
        "ranks/group/agreement.py",
        "(newest // size + 1) * size + me",
        "newest + 1",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "all ranks leave each other out, and wait for each other",
        "ranks/group/agreement.py",
        "    if members or me not in failed:  #",
        "    if True:  #",
        ("ranks/group/test_agreement_to_shrink.py",),
        "quick",
    ),
    Mutant(
        "who blames a rank that has neither gone nor given up ends the call before the rank's end is seen",
        "ranks/failures/verdict.py",
        "unseen=not seen)",
        "unseen=False)",
        ("ranks/failures/test_verdict.py",),
        "quick",
    ),
    Mutant(
        "a rank that has gone is told as late by a peer that timed out",
        "ranks/failures/verdict.py",
        "            for blamed in (by_rank[rank] for rank in blames):\n",
        "            for blamed in ():\n",
        ("ranks/failures/test_verdict.py",),
        "quick",
    ),
    Mutant(
        "limits of years overflow",
        "base/fd_channel.py",
        "max(1e-3, min(LONGEST_S, deadline - time.monotonic()))",
        "max(1e-3, deadline - time.monotonic())",
        ("base/channel", "ranks/rendezvous/test_rendezvous.py::test_ranks_may_wait_for_years"),
    ),
    Mutant(
        "new_group(timeout=) is not told to be timeout_s=",
        "calls/groups.py",
        "@hints_timeout_s\ndef split(",
        "def split(",
        ("base/units/test_units.py",),
        "quick",
    ),
    Mutant(
        "averages of 64-bit integers divide a sum that has wrapped",
        "engine/reducers/kernels.py",
        "return _divide_wide(element, b, v, n, ranks)",
        "v = b.trunc(v, vector(_I64, n)); return b.sext(b.sdiv(v, _spread(b, ranks, _I64, n)), vector(_I128, n))",
        ("engine/test_reducers.py",),
    ),
    Mutant(
        "a function is compiled for a literal, and later taken for that of all integers",
        "engine/kernels/compiled.py",
        "[types.unliteral(one) for one in args]",
        "args",
        ("engine/test_machine_code.py",),
        "quick",
    ),
    Mutant(
        "a thread posts the receive of the next call before the message of this one is taken",
        "hosts/messages/persistent_receives.py",
        "            is_of_call = self._word[0] == number\n            self.handle = None\n        return is_of_call\n",
        "            self.handle = None\n        return self._word[0] == number\n",
        ("hosts/messages/test_persistent_receives.py",),
    ),
    Mutant(
        "two threads post a receive twice",
        "hosts/messages/persistent_receives.py",
        "        with self._lock:\n            if self.handle is None:\n",
        "        if True:\n            if self.handle is None:\n",
        ("hosts/messages/test_persistent_receives.py",),
    ),
    Mutant(
        "a rank that is lost is told of in calls of others",
        "hosts/messages/persistent_receives.py",
        "            with suppress(Lost):\n                buffer.post(carrier)\n",
        "            buffer.post(carrier)\n",
        ("hosts/messages/test_persistent_receives.py",),
    ),
    Mutant(
        "a message to oneself is given up when all others have returned",
        "calls/p2p/progress.py",
        "len(went) == len(ranks) and (awaited or request.peer != ANY_SOURCE)",
        "len(went) == len(ranks)",
        ("calls/p2p/test_objects.py",),
    ),
    Mutant(
        "a rank without memory fails a run with TypeError",
        "ranks/launch/reports.py",
        "layout.__new__(kind, str(plain))",
        "kind.__new__(kind, str(plain))",
        ("ranks/launch/test_outcome.py",),
    ),
    Mutant(
        "the stack of a late rank is told to itself, too",
        "ranks/failures/attend.py",
        'said = str(error).partition("\\n")[0] if late else str(error)',
        "said = str(error)",
        ("ranks/failures/test_stall.py",),
    ),
    Mutant(
        "a call that can be made in another way ends before the last rank has come and told its call",
        "ranks/failures/attend.py",
        "if not silent or _can_be_cured(calls):",
        "if not silent:",
        ("calls/collectives/test_lowering_mismatch.py",),
    ),
    Mutant(
        "a call of which one rank has died ends before the others have told",
        "ranks/failures/attend.py",
        "if peer.rank not in calls and not peer.gone)",
        "if peer.rank not in calls and not any(one.gone for one in peers))",
        ("ranks/failures/test_verdict.py",),
        "quick",
    ),
    Mutant(
        "a rank waits in a group for one that shrinks the group above",
        "ranks/group/abort.py",
        "if shrinking and group.rank not in shrinking:",
        "if False:",
        ("calls/groups/test_failures.py",),
    ),
    Mutant(
        "a call that fails in a backward pass raises a plain RuntimeError there",
        "integrations/torch/to_torch.py",
        "if torch._C._current_graph_task_id() >= 0:",
        "if False:",
        ("calls/retry/test_retry.py",),
    ),
    Mutant(
        "a rank that dies before it uses its memory is not seen",
        "ranks/rendezvous/rendezvous.py",
        "            arena.board(rank).set_process(self._identities[rank].pid, self._identities[rank].ticks)\n",
        "            pass\n",
        ("ranks/failures/test_deaths.py",),
    ),
    Mutant(
        "ranks of one host meet though they look up at other paces",
        "ranks/rendezvous/identity.py",
        '_ON_ONE_HOST = ("look_up_s",)',
        "_ON_ONE_HOST = ()",
        ("ranks/rendezvous/test_several_hosts.py",),
    ),
    Mutant(
        "tensors of a call that breaks group after group are held once for each failure",
        "ranks/group/group.py",
        "one.data_ptr() if isinstance(one, torch.UntypedStorage) else id(one), one",
        "len(_held), one",
        ("ranks/group/test_abort.py",),
    ),
    Mutant(
        "a process that compiles ever new custom ops is not warned",
        "engine/reducers/custom_kernels.py",
        "if len(_compiled_ops) == _MANY:",
        "if False:",
        ("engine/test_custom_ops.py::test_a_process_that_makes_ever_new_ops_is_warned_once",),
    ),
    Mutant(
        "a nested tensor in a list ends the process",
        "calls/coalesced/make_coalesced.py",
        "if layouts is None or not have_strides(tensors):",
        "if layouts is None:",
        ("calls/coalesced/test_errors.py",),
    ),
    Mutant(
        "what a rank keeps of its own output is lost where outputs are copied",
        "calls/dispatch/step.py",
        "return cls(inp, out, copied, results",
        "return cls(inp, out, copied if request.in_place else copied[len(results) :], results",
        ("quick/test_calls.py",),
        "quick",
    ),
    Mutant(
        "groups of two parents, made by two threads, share a name on a host",
        "ranks/group/sub_groups.py",
        "parent.span.gid if parent.span is not None else 0)",
        "0)",
        ("calls/over_hosts/test_calls.py",),
    ),
]
"""`make mutants` runs them, and says which ring has caught each."""
