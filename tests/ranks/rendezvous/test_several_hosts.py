"""Ranks of several hosts meet: candidates by identity, the map by who got the memory. Ranks are threads here."""

import re

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from tests.ranks.rendezvous.conftest import close, meet, together
from unisono.base.config import Config
from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.base.records import DepartureKind
from unisono.hosts.addresses import is_loopback, own_address, store_host
from unisono.ranks.rendezvous import meeting
from unisono.ranks.rendezvous.handover import fetch
from unisono.ranks.rendezvous.identity import Identity, check, common_settings, host_names, place, remark, way_between
from unisono.schedule import Hosts

COMMON = common_settings(Config())
HOME = Identity("node-a", "boot-1", "net:[1] pid:[1]", 1000, 4711, 99, "", COMMON, "10.0.0.1")
AWAY = HOME._replace(host="node-b", boot="boot-2", address="10.0.0.2")
LOOP = "127.0.0.1"
AT = r"\(host node-a at 10.0.0.{}\)"


pytestmark = pytest.mark.usefixtures("threads_are_ranks")


def on_hosts(host_of, settings=lambda _: {}, **special):
    """The outcome of each rank's meeting. host_of: the UNISONO_HOST_ID of each rank. settings(rank): of its Config."""
    store, size = HashStore(), len(host_of)
    config = lambda rank: Config(**{"heap_bytes": 1 << 20, **settings(rank)})  # noqa: E731
    fields = lambda rank: {"host_id": host_of[rank]} | {name: of[rank] for name, of in special.items()}  # noqa: E731
    return together(lambda rank: meet(rank, size, store, 60.0, config(rank)), range(size), special=fields)


@pytest.mark.parametrize("host_of", ["00", "0000000", "01", "0011", "0101", "0001", "0122", "01234", "0110210"])
def test_hosts_have_their_memory_and_all_the_map(host_of):
    hosts, outcomes = Hosts.of(host_of), on_hosts(host_of)
    for number, met in enumerate(outcomes):
        assert not isinstance(met, Exception), met
        assert met.hosts == hosts
        assert met.arena.size == hosts.ranks
        met.arena.board(number).set_gone(DepartureKind.LEFT, f"tested {number}")
    for number, met in enumerate(outcomes):
        assert {peer for peer in range(hosts.ranks) if met.arena.board(peer).gone} == {*hosts.beside(number)}
    assert {len(met.secret) for met in outcomes} == {32 if hosts.spans else 0}
    assert len({met.secret for met in outcomes}) == 1
    if hosts.spans:
        assert {tuple(name.split("/")[1] for name in met.names) for met in outcomes} == {tuple(dict.fromkeys(host_of))}
    close(outcomes)


@pytest.mark.parametrize(("host_of", "refused"), [("000", 1), ("0011", 3)])
def test_unreachable_memory_is_an_error_of_all(monkeypatch, host_of, refused):
    """As on two machines that are copies of one, and so look like one."""

    def some_fetch(home, first, number, *rest):
        if number == refused:
            raise ConnectionRefusedError
        return fetch(home, first, number, *rest)

    monkeypatch.setattr(meeting, "fetch", some_fetch)
    for error in on_hosts(host_of):
        assert isinstance(error, ArgumentError)
        assert f"rank {refused} runs on the machine of rank {host_of.index(host_of[refused])}, but" in str(error)
        assert "set UNISONO_HOST_ID" in str(error)


def test_more_ranks_than_a_group_may_have():
    with pytest.raises(ArgumentError, match="got 1025, expected 1 to 1024 ranks"):
        meet(7, 1025, HashStore(), 1.0)


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ({"host": "other name"}, "000", ""),
        ({"boot": "boot-2"}, "001", ""),
        ({"namespaces": "net:[2] pid:[1]"}, "001", "in another container"),
        ({"namespaces": "net:[1] pid:[2]"}, "001", "in another container"),
        ({"user": 1001}, "001", "as user 1001, not 1000"),
        ({"host_id": "x"}, "001", ""),
    ],
)
def test_candidates_for_one_host(change, expected, words):
    """Ranks of one machine that do not share memory, and do not want to, are told once."""
    ranks = {0: HOME, 1: HOME._replace(pid=2), 2: HOME._replace(pid=3, **change)}
    assert place(ranks) == Hosts.of(expected)
    check(ranks)
    said = remark(ranks, place(ranks))
    assert words in said
    assert said.count("\n") == bool(words)


@pytest.mark.parametrize(
    ("names", "addresses", "expected"),
    [("abc", "123", ["a", "b", "c"]), ("vvw", "123", ["v at 10.0.0.1", "v at 10.0.0.2", "w"]),
     ("vwv", "121", ["v#0", "w", "v#2"]), ("vv", "01", ["v#0", "v at 10.0.0.1"]),
     (["n" * 60] * 2, "12", [f"{'n' * 20} at 10.0.0.{k}" for k in "12"]),
     (["n" * 60] * 2, "67", [f"{'n' * 30}#{k}" for k in "01"])],
)  # fmt: skip
def test_hosts_of_one_name_are_told_apart(names, addresses, expected):
    """By addresses; by numbers where two have one, as containers may, or where it is known to its own host only."""
    own = {
        "0": LOOP,
        **{digit: f"10.0.0.{digit}" for digit in "123"},
        **{digit: f"fd00::9abc:{digit}" for digit in "67"},
    }
    ranks = {
        2 * k + seat: HOME._replace(host=name, boot=f"boot-{k}", pid=seat, address=own[digit])
        for k, (name, digit) in enumerate(zip(names, addresses, strict=True)) for seat in range(2)
    }  # fmt: skip
    assert list(host_names(ranks, place(ranks))) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"host": "node-a", "common": COMMON | {"unisono": "0.0.7"}},
            rf"2 {AT.format(2)} .*rank 0 {AT.format(1)} has ",
        ),
        ({"host": "node-a", "boot": "boot-1"}, r"ranks 1 and 2 are the same process \(pid 4711\), but threads"),
        ({"unisono": "0.0.7"}, r"rank 2 \(host node-b\) has unisono=0.0.7, but rank 0 \(host node-a\) has "),
        ({"byte_order": "middle"}, r"rank 2 \(host node-b\) has byte_order=middle, .* It must be the same on all"),
        ({"dtypes": "0"}, r"rank 2 \(host node-b\) has dtypes=0, but rank 0 "),
        ({"new": "0"}, r"rank 2 .* has new=0, but rank 0 .* has nothing. It must be the same on all ranks"),
        ({"host_silence_s": "4.5"}, r"rank 2 .* has host_silence_s=4.5, .* has 5.0. Set UNISONO_HOST_SILENCE_S"),
        ({"look_up_s": "0.5"}, r"rank 2 .* has look_up_s=0.5, but rank 0 .* has 0.02. Set UNISONO_LOOK_UP_S"),
    ],
)
def test_ranks_that_cannot_form_a_group(change, words):
    other = AWAY._replace(**change) if "host" in change else AWAY._replace(common=COMMON | change)
    with pytest.raises(ArgumentError, match=words):
        check({0: HOME._replace(pid=7), 1: HOME, 2: other})


def test_several_hosts_need_common_settings():
    other = common_settings(Config(link=Link.parse("1Gbit,100us")))
    ranks = {0: HOME, 1: HOME._replace(pid=2, common=other)}
    check(ranks)
    with pytest.raises(ArgumentError, match=r"rank 1 \(host node-a\) has link=.* Set UNISONO_LINK to the same"):
        check(ranks | {2: AWAY})


@pytest.mark.parametrize("host_of", ["000", "001", "012"])
def test_other_look_up_pace_is_told_to_all(host_of):
    (said,) = set(map(str, on_hosts(host_of, lambda rank: {"look_up_s": 2.5 if rank == 1 else 0.02})))
    assert re.fullmatch(
        r"rank 1 \(host .*\) has look_up_s=2.5, but rank 0 \(host .*\) has 0.02\. "
        "Set UNISONO_LOOK_UP_S to the same value on all ranks.",
        said,
    )


def test_first_rank_gives_its_host_settings():
    mets = on_hosts("0011", lambda rank: {"segment_bytes": (rank + 1) << 16})
    assert [met.arena.shape["segment_bytes"] >> 16 for met in mets] == [1, 1, 3, 3]
    close(mets)


def test_an_address_on_the_way_between_hosts():
    lost = [one._replace(address=LOOP) for one in (HOME, AWAY)]
    assert way_between({0: HOME, 1: AWAY}) == "10.0.0.1"
    assert way_between({0: lost[0], 1: AWAY}) == "10.0.0.2"
    assert way_between({0: lost[0], 1: lost[0]._replace(pid=2, host_id="1")}) == ""  # one machine
    words = r"rank 0 \(host node-a\) and rank 2 \(host node-b\) .*127.0.0.1.* Set MASTER_ADDR"
    with pytest.raises(ArgumentError, match=words):
        way_between({0: lost[0], 1: lost[0]._replace(pid=2), 2: lost[1]})


def test_loopback_master_address_on_its_own_host(monkeypatch):
    """As where /etc/hosts says that the host's name is 127.0.1.1: the way to the others tells the own address."""
    monkeypatch.setattr(meeting, "own_address", {"": "", "10.0.0.2": "10.0.0.1"}.get)
    outcomes = on_hosts("01", boot="ab", address=["127.0.1.1", "10.0.0.2"])
    assert [met.address for met in outcomes] == ["10.0.0.1", "10.0.0.2"]
    close(outcomes)


def test_addresses():
    assert own_address("127.0.0.1") == LOOP
    assert own_address("localhost") in (LOOP, "::1")
    assert own_address("no.such.name.invalid") == ""
    assert [one for one in ("127.0.1.1", "::1", "", "10.0.0.1", "fe80::1%eth0") if not is_loopback(one)] == [
        "10.0.0.1", "fe80::1%eth0",
    ]  # fmt: skip
    server = TCPStore(LOOP, 0, is_master=True, wait_for_workers=False)
    assert store_host(PrefixStore("a", PrefixStore("b", server))) == LOOP
    assert store_host(PrefixStore("a", HashStore())) == ""
