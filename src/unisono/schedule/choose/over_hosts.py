"""Choose how a call goes between hosts: how many rails, and which algorithm among the hosts, and say why.

A round between hosts takes the link's latency, and the bytes of the busiest host at the link's rate. Each further rail
is one more message for the host. A rank that sends to all other hosts in one round sends and takes its messages one
after the other. Long messages have to wake the rank that waits for them. A rank sends, combines and copies at the rate
of a processor. So calls of few bytes take one rail and the fewest messages. Calls of many bytes take all rails, which
share the work, and put the fewest bytes on the link; between few hosts they take the fewest rounds.
"""

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.units import format_seconds, plural
from ..algorithms.catalogue import Algorithm, AlgorithmLike, check_collective, find
from ..algorithms.over_hosts import CORES, spanning, spanning_name
from ..contract import ROOTED
from ..counts import levels, lower_bounds
from ..hosts import Hosts
from ..moves import check_rows
from ..table import Schedule

_MESSAGE_S = 40e-6  # what one more message in a round costs a host; Gloo takes 35 to 50 microseconds

_WAKE_S = 100e-6
"""What a round takes in which a rank sleeps: a thread waits for the message, and wakes the rank. The link's latency is
that of a word for which a rank looks. No round takes longer to wake a rank than its bytes are under way.
"""

_IN_ONE_PASS = {"all_reduce": "two_shot", "reduce": "linear"}  # the others: direct
"""The algorithm of all ranks by which each result is combined in one pass, in rank order."""
_SCANS = "scan", "exscan"
_TO_ALL = "direct", "two_shot"  # the algorithms in which a rank sends to all other hosts in each round
_RANK_BYTES_PER_S = 5e9  # the rate at which a rank combines or copies within its host, and sends

_MOST_SEGMENTS = 64

_PIECE_BYTES, _MESSAGE_BYTES, _MOST_PIECES = 512 << 10, 16 << 10, 4
"""The least bytes of a piece and, on average, of its messages; and the most pieces: while one is under way, ranks
combine the next one. Shorter messages cost more than their bytes.
"""


class SpanningChoice(NamedTuple):
    """How many rails, which algorithm between hosts, into how many segments, why, and how long it should take.

    inside_s, between_s: 0 where the call names its algorithm.
    name: the full name of the table.
    table: an algorithm that knows no hosts; it is used as it is, without rails and core. Ranks of one host then send
    each other messages, too.
    """

    rails: int | None
    core: str | None
    why: str
    segments: int | None = None
    pieces: int = 1
    inside_s: float = 0.0
    between_s: float = 0.0
    name: str = ""
    table: Algorithm | None = None

    def make(self, collective: str, hosts: Hosts, root: int) -> Schedule:
        if self.table is None:
            return spanning(collective, hosts, root, rails=self.rails, core=self.core, segments=self.segments)
        made = self.table.schedule(hosts.ranks, root).replace(hosts=hosts)
        if made.scratch:
            said = f"{made.name} has {made.scratch} scratch chunks, more than the {made.chunks} of its vector"
            raise ArgumentError(f"{said}, so it runs on one host only")
        check_rows(made)
        return made

    @property
    def seconds(self) -> float:
        """What the whole call should take."""
        return self.inside_s + self.between_s


def choose_spanning(
    collective: str,
    nbytes: int,
    hosts: Hosts,
    config: Config | None = None,
    algorithm: AlgorithmLike | None = None,
    *,
    in_one_pass: bool = False,
) -> SpanningChoice:
    """The choice for a collective on vectors of `nbytes`, as `schedule.counts` defines a vector.

    algorithm: what the call names, if anything; see `find`. A name in `CORES`, short or full, runs between hosts, on as
    many rails as a call without a name takes. Any other is a table of all ranks, which is used as it is, and so are
    those of all_to_all, scan and exscan.
    in_one_pass: may partial results of a host not be combined? Then only the table of all ranks will do.

    The choice depends on the arguments only, so all ranks make the same. Raises ArgumentError for an unknown
    collective, and as `find` does.
    """
    check_collective(collective)
    config = config or Config.from_env()
    best = _cheapest(collective, nbytes, hosts, config)
    why = "the call names it"
    if algorithm is None and in_one_pass:
        algorithm = find(collective, _IN_ONE_PASS.get(collective, "direct"))
        why = "it combines each result in one pass, in rank order"
    if algorithm is not None:
        named = find(collective, algorithm)
        best = best._replace(why=why, inside_s=0.0, between_s=0.0, core=named.name)
        if not isinstance(algorithm, str) or named.name not in CORES.get(collective, ()):
            best = best._replace(rails=None, core=None, segments=None, table=named)
    if best.table is not None:
        return best._replace(name=best.table.full_name)
    return best._replace(name=spanning_name(collective, hosts, best.rails, best.core or "", best.segments))


def _cheapest(collective: str, nbytes: int, hosts: Hosts, config: Config) -> SpanningChoice:
    forms = sorted(_forms(collective, nbytes, hosts, config.link), key=lambda form: form.seconds)
    best, *others = forms
    other = next((form for form in others if form.core != best.core or form.rails != best.rails), None)
    over = f"over {config.link}"
    if other is None or not hosts.spans:
        return best._replace(why=f"{over} that takes about {format_seconds(best.seconds)}")
    than = f"{_name(other)} {format_seconds(other.seconds)}"
    return best._replace(why=f"{over} {_name(best)} takes about {format_seconds(best.seconds)}, {than}")


def messages_at_once(collective: str, core: str | None, hosts: Hosts) -> int:
    """The number of messages that a rank sends to other hosts in a round."""
    if core not in _TO_ALL:
        return 1
    others = len(hosts.members) - 1 if collective in CORES else hosts.ranks - min(map(len, hosts.members))
    return max(1, others)


def gated_rounds(collective: str, rounds: int, hosts: Hosts) -> int:
    """How many rounds between hosts a call takes, whose table has `rounds` of them.

    The data of a scan, or of a collective with a root, does not tell every host that all have entered the call: a
    barrier runs beside.
    """
    beside = collective in ROOTED or collective in _SCANS
    return max(rounds, (len(hosts.members) - 1).bit_length()) if beside else rounds


def time_between(rounds: int, nbytes: float, rails: int, link: Link, at_once: int = 1) -> float:
    """Seconds for rounds between hosts in which the busiest host sends or receives `nbytes`.

    at_once: the number of messages that a rank sends in a round.
    """
    each = link.latency_s + _further(rails, at_once) * _MESSAGE_S + _wake_s(rounds, nbytes, link)
    return rounds * each + nbytes / link.bytes_per_s + nbytes / rails / _RANK_BYTES_PER_S


def _further(rails: int, at_once: int) -> int:
    """How many `_MESSAGE_S` a round takes. Each further message of one rank counts twice: the rank also takes one."""
    return rails - 1 + 2 * rails * (at_once - 1)


def _wake_s(rounds: int, nbytes: float, link: Link) -> float:
    return min(_WAKE_S, nbytes / max(1, rounds) / link.bytes_per_s)


def time_inside(collective: str, nbytes: float, hosts: Hosts, rails: int) -> float:
    """Seconds for the parts inside the largest host: what its busiest rank combines and copies."""
    size, several = max(map(len, hosts.members)), rails > 1
    block, slice_ = size / hosts.ranks, 1 / rails
    amounts = {
        "all_reduce": size * slice_ + 1,
        "broadcast": 1 + several * slice_,
        "reduce": size * slice_ + several,
        "all_gather": 1.0,
        "reduce_scatter": size * slice_,
        "scatter": block,
        "gather": block,
        "all_to_all": block,
        "barrier": 0.0,
        "scan": size,
        "exscan": size,
    }
    return (size > 1) * amounts[collective] * nbytes / _RANK_BYTES_PER_S


def _forms(collective: str, nbytes: int, hosts: Hosts, link: Link) -> Iterator[SpanningChoice]:
    """The choices, with their times. Of equal ones the first is taken."""
    n = len(hosts.members)
    lg, floor = (n - 1).bit_length(), n.bit_length() - 1
    folded = int(n & n - 1 > 0)
    bounds = lower_bounds(collective, hosts)
    amount = max(bounds.sent, bounds.received)

    def form(rails: int | None, core: str, rounds: int, amount: float, segments: int | None = None) -> SpanningChoice:
        inside = time_inside(collective, nbytes, hosts, rails or 1)
        at_once, gated = messages_at_once(collective, core, hosts), gated_rounds(collective, rounds, hosts)
        between = time_between(gated, amount * nbytes, rails or 1, link, at_once) if n > 1 else 0.0
        senders = rails or (1 if collective in CORES else max(map(len, hosts.members)))
        message = amount * nbytes / max(1, rounds * senders * (n - 1 if core == "linear" else at_once))
        pieces = _pieces(nbytes, message) if (segments or 1) == 1 else 1  # segments are pieces already
        return SpanningChoice(rails, core, "", segments, pieces, inside, between)

    for rails in dict.fromkeys((1, hosts.rails)):
        if collective == "all_reduce":
            yield form(rails, "recursive_doubling", floor + 2 * folded, floor + folded)
            yield form(rails, "circulant", 2 * lg, 2 * (n - 1) / n)
            yield form(rails, "two_shot", 2, 2 * (n - 1) / n)
        elif collective in ("broadcast", "reduce"):
            yield form(rails, "binomial", lg, lg)
            cut = _segments(lg, nbytes, rails, link)
            yield form(rails, "circulant", cut - 1 + lg, (cut - 1 + lg) / cut, cut)
        elif collective in ("all_gather", "reduce_scatter"):
            yield form(rails, "circulant", lg, amount)
            yield form(rails, "direct", 1, amount)
        elif rails == 1 and collective not in CORES:
            table, rounds = find(collective, "hillis_steele" if collective in _SCANS else "direct"), 1
            if collective in _SCANS:
                found = levels(table.schedule(hosts.ranks).replace(hosts=hosts))
                rounds, amount = found.between, found.most
            yield form(None, table.name, rounds, amount)._replace(table=table)
        elif rails == 1:
            (core, *_) = CORES[collective]
            yield form(None, core, lg if collective == "barrier" else 1, amount)


def _segments(lg: int, nbytes: int, rails: int, link: Link) -> int:
    """Into how many segments a broadcast in lg - 1 + segments rounds is best cut; a power of two, so tables are few."""
    each = (time_between(1, 0, rails, link) + _WAKE_S) * link.bytes_per_s
    best = isqrt(int(max(lg - 1, 0) * nbytes / each))
    return 1 << min(max(best, 1), _MOST_SEGMENTS).bit_length() - 1


def _pieces(nbytes: int, message: float) -> int:
    """Into how many pieces a vector is cut; a power of two, so tables are few.

    message: the bytes of one message of the whole vector.
    """
    fit = min(nbytes // _PIECE_BYTES, int(message / _MESSAGE_BYTES), _MOST_PIECES)
    return 1 << max(fit, 1).bit_length() - 1


def _name(form: SpanningChoice) -> str:
    return f"{form.core} on {plural(form.rails or 1, 'rail')}"
