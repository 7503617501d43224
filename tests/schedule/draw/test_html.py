"""The page that plays tables has the data of the film, stands alone, says what it leaves out, and fits notebooks."""

import json
import re
from html import unescape
from typing import Any

import pytest
from IPython.core.formatters import HTMLFormatter

from tests.support.each import each
from tests.support.schedule_oracles import twice
from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, Hosts, Schedule, count, levels, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html, svg, text
from unisono.schedule.draw.film import film

NAMES = [
    "all_reduce.ring", "all_reduce.circulant", "all_to_all.bruck", "broadcast.linear", "broadcast.chain",
    "barrier.dissemination", "scan.direct", "reduce_scatter.ring",
]  # fmt: skip


def table(schedule: Schedule) -> dict[str, Any]:
    """The data of a page, up to the end of its script."""
    page = html(schedule)
    (found,) = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["tables"]
    return dict(found)


def contents(data: dict[str, Any]) -> list[dict[tuple[int, int], tuple[tuple[int, int], ...]]]:
    """For every state: rank and number of the slot -> the pairs (rank, chunk) in it."""
    held = [
        tuple(sorted((rank, chunk) for first, last, chunk in runs for rank in range(first, last + 1)))
        for runs in data["held"]
    ]
    state, out, width = list(data["before"]), [], len(data["slots"])
    for writes in [[], *(found["writes"] for found in data["rounds"])]:
        for cell, number in writes:
            state[cell] = number
        out.append({(data["ranks"][k // width], k % width): held[n] for k, n in enumerate(state) if n >= 0})
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_page_holds_what_the_film_holds(name: str, p: int) -> None:
    schedule = CATALOGUE[name].schedule(p)
    story, data = film(schedule), table(schedule)
    number = {slot: k for k, slot in enumerate(story.slots)}
    wanted = [{(rank, number[b, c]): held for (rank, b, c), held in s.items() if held} for s in story.states()]
    assert contents(data) == wanted
    assert len(data["rounds"]) == schedule.rounds
    for frame, played in zip(story.frames, data["rounds"], strict=True):
        assert [tuple(move[2:5]) for move in played["moves"]] == [(m.source[0], m.target[0], m.op) for m in frame.moves]
        assert played["words"]
    assert data["wrong"] == [[]] * (schedule.rounds + 1)


@each("name", NAMES)
def test_rounds_cost_what_is_counted(name: str) -> None:
    schedule = CATALOGUE[name].schedule(8)
    starts, between, inside = map(sum, zip(*(played["cost"] for played in table(schedule)["rounds"]), strict=True))
    counts = count(schedule)
    most = 0 if schedule.collective == "barrier" else max(counts.most_sent, counts.most_received)
    assert (starts, inside) == (counts.rounds, 0)
    assert between >= most - 1e-9
    if name in ("all_reduce.ring", "all_reduce.circulant", "reduce_scatter.ring", "barrier.dissemination"):
        assert between == pytest.approx(most)


def test_traffic_inside_a_host_costs_no_link() -> None:
    schedule = spanning("all_reduce", Hosts.parse("2x4"), rails=4)
    costs, counted = [played["cost"] for played in table(schedule)["rounds"]], levels(schedule)
    assert sum(starts for starts, _, _ in costs) == counted.between
    assert sum(between for _, between, _ in costs) == pytest.approx(counted.most)
    assert sum(inside > 0 for _, _, inside in costs) == counted.inside


def test_hosts_stand_together() -> None:
    schedule = spanning("all_gather", Hosts.parse("2x3:round_robin"))
    data = table(schedule)
    assert data["ranks"] == [0, 2, 4, 1, 3, 5]
    assert data["hosts"] == [[0, 2, 4], [1, 3, 5]]
    for move in (move for played in data["rounds"] for move in played["moves"]):
        assert move[6] == ((move[2] - move[3]) % 2)
    assert table(CATALOGUE["all_gather.ring"].schedule(4))["hosts"] == []


def test_page_stands_alone_and_escapes_names() -> None:
    schedule = trace(lambda r, p: [send(0, 1, 0)], 2, 1, "broadcast", name="</script><script>{{data}}")
    page = html(schedule)
    assert table(schedule)["name"] == schedule.name
    assert page.count("<script") == 2
    assert not re.findall(r"<[^>]* (?:src|href)=", page)
    assert not re.findall("https?:", page.replace("http://www.w3.org/2000/svg", ""))
    assert "{{" not in page.replace("{{data}}", "")


def test_wrong_table_says_so() -> None:
    data = table(trace(twice, 2, 1, "all_reduce"))
    assert "counted twice" in data["fault"]
    assert data["wrong"] == [[], [], [0, 1]]
    assert contents(data)[-1][1, 0] == ((0, 0), (0, 0), (1, 0))


def test_large_table_says_what_is_left_out() -> None:
    whole = table(CATALOGUE["all_reduce.ring"].schedule(48))
    assert (whole["left_out"], whole["partial"]) == ("", False)
    wide = table(CATALOGUE["broadcast.binomial"].schedule(100))
    assert (wide["left_out"], wide["partial"]) == ("Not all of it is shown: only ranks 0..63 of 100.", False)
    hidden = [move for played in wide["rounds"] for move in played["moves"] if -1 in move[:2]]
    assert hidden
    assert all(min(move[2:4]) < 64 <= max(move[2:4]) for move in hidden)
    long = table(CATALOGUE["all_reduce.ring"].schedule(128).replace(name="long"))
    said = "only ranks 0..63 of 128, chunks 0..63 of 128, rounds 0..34 of 254."
    assert (long["left_out"], long["partial"]) == (f"Not all of it is shown: {said}", True)
    assert len(long["rounds"]) == 35
    with pytest.raises(ArgumentError, match=r"600 chunks each are too many for a page. Draw fewer ranks or chunks"):
        html(CATALOGUE["all_gather.ring"].schedule(600))


def test_notebooks_show_the_player_in_a_frame() -> None:
    schedule, shown = CATALOGUE["all_reduce.ring"].schedule(4), HTMLFormatter()
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" style="[^"]*"></iframe>', shown(schedule))
    assert found
    assert unescape(found[1]) == html(schedule)
    too_large = shown(CATALOGUE["all_gather.ring"].schedule(2000))
    assert too_large.startswith("<pre>")
    assert "Draw fewer ranks" in too_large


def test_marked_slot_is_that_of_the_proof() -> None:
    """Nothing is counted twice here, so only the proof knows which slot is wrong before the end."""

    moves = send(1, 0, 1, to=0, op=ADD), send(0, 1, 0)
    table = trace(lambda r, p: moves, 2, 2, "all_reduce", name="crosses")
    grid = text(table)
    blocks = grid.split("\n\n")[1:]
    assert "✗" not in blocks[0]
    (line,) = [line for line in blocks[1].splitlines() if "✗" in line]
    assert "chunk 0  ✗0[0]+1[1]" in line
    assert "crosses is not a correct all_reduce: in round 0 chunk 1 would be added to chunk 0" in " ".join(grid.split())
    assert "crosses is not a correct all_reduce" in svg(table)
    wrong = re.findall(r'class="box[^"]* wrong" data-slot="([^"]*)"', svg(table))
    assert wrong[0] == "1-0-0-0"
    assert "is not a correct all_reduce" in html(table)
