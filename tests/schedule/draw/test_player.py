"""The page in a real browser: by keys, by pointer, while it plays, on a phone, in dark colours, and read by label."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import browser, missing, opened
from tests.support.schedule_oracles import twice
from tests.support.waiting import until
from unisono.base.link import Link
from unisono.schedule import Hosts, X, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning
from unisono.schedule.draw import html
from unisono.schedule.draw.film import Film, Held, film
from unisono.schedule.draw.text import spans

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

STILL = {"reduced_motion": "reduce"}
NAMES = [
    "all_reduce.ring", "all_reduce.tree", "all_to_all.bruck", "broadcast.binomial", "barrier.dissemination",
    "scan.direct",
]  # fmt: skip
CELLS = "[...document.querySelectorAll('[role=gridcell]')]"
ROUND = "document.querySelector('.round').textContent"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def page(*names: str, p: int = 5, **more: Any) -> str:
    return html(*(CATALOGUE[name].schedule(p) for name in names), **more)


def sets(tab: Page, field: str, value: str) -> None:
    """Give a field of the page another value, as a user does."""
    tab.evaluate(f"$('{field}').value = {value}, $('{field}').onchange()")


def held_text(story: Film, slot: tuple[int, int, int], held: Held) -> str:
    """What the label of a cell must say of its content, from the film."""
    rank, buffer, chunk = slot
    place = f"chunk {chunk}" if story.slots[-1][0] == X else f"{'XYT'[buffer]} chunk {chunk}"
    if not held:
        return f"rank {rank} · {place}. Empty."
    origins: dict[int, list[int]] = {}
    for who, origin in held:
        origins.setdefault(origin, []).append(who)
    said = "; ".join(
        f"{'ranks' if len(who) > 1 else 'rank'} {spans(sorted(who))}" + (f" (their chunk {c})" if c != chunk else "")
        for c, who in sorted(origins.items())
    )
    whole = " Complete." if story.must.get(slot) == held else ""
    return f"rank {rank} · {place}. Contributions of {said}.{whole}"


@pytest.mark.parametrize("name", NAMES)
def test_cell_labels_match_the_film(chromium: Browser, name: str) -> None:
    schedule = CATALOGUE[name].schedule(5)
    story = film(schedule)
    slots = [(rank, *slot) for rank in range(schedule.ranks) for slot in story.slots]
    with opened(chromium, html(schedule), **STILL) as tab:
        for number, state in enumerate(story.states()):
            labels = tab.evaluate(f"{CELLS}.map(g => g.ariaLabel)")
            assert labels == [held_text(story, slot, state.get(slot, ())) for slot in slots]
            done = sum(state.get(slot) == held for slot, held in story.must.items())
            where = f"round {number - 1} of 0..{schedule.rounds - 1}" if number else "before"
            assert tab.evaluate(ROUND).startswith(f"{where} · {done} of {len(story.must)} chunk")
            tab.keyboard.press("ArrowRight")
        for view in ("2", "3", "1"):
            tab.keyboard.press(view)
            stripes = tab.evaluate(f"{CELLS}.map(g => g.querySelectorAll('rect:not(.frame)').length)")
            assert stripes == [len(state.get(slot, ())) for slot in slots]


def test_keys_move_the_player(chromium: Browser) -> None:
    with opened(chromium, page("all_reduce.ring")) as tab:
        for key, stop in zip(("Right", "Right", "Left", "End", "Right", "Home"), (1, 2, 1, 8, 8, 0), strict=True):
            tab.keyboard.press(f"Arrow{key}" if key in ("Right", "Left") else key)
            until(lambda: tab.evaluate("walk === null"))
            assert tab.evaluate("[at, +$('at').value]") == [stop, stop]
        assert tab.evaluate("$('at').getAttribute('aria-valuetext')").startswith("before")
        for key, view in (("2", "ring"), ("3", "tree"), ("1", "rows")):
            tab.keyboard.press(key)
            assert tab.evaluate("document.querySelector('[name=view]:checked').value") == view
            assert tab.evaluate("panels[0].stage.view") == view
        for theme in ("dark", "light"):
            tab.keyboard.press("t")
            assert tab.evaluate("document.documentElement.dataset.theme") == theme


def test_arrow_keys_move_between_chunks(chromium: Browser) -> None:
    with opened(chromium, page("all_reduce.ring"), **STILL) as tab:
        for _ in range(12):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
                break
        for key, rank, chunk in (("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("ArrowDown", 2, 1), ("ArrowLeft", 2, 0),
                                 ("End", 2, 4), ("ArrowUp", 1, 4), ("Home", 1, 0)):  # fmt: skip
            tab.keyboard.press(key)
            assert tab.evaluate("document.activeElement.ariaLabel").startswith(f"rank {rank} · chunk {chunk}.")
            assert tab.evaluate("$('tip').textContent").startswith(f"rank {rank} · chunk {chunk}Holds")
            assert tab.locator("[role=gridcell][tabindex='0']").count() == 1
        assert tab.evaluate("at") == 0
        tab.keyboard.press("Escape")
        assert tab.evaluate("$('tip').hidden")


def test_play_goes_to_the_end_and_begins_again(chromium: Browser) -> None:
    with opened(chromium, page("broadcast.binomial")) as tab:
        tab.evaluate("$('speed').value = .5")
        tab.keyboard.press(" ")
        assert tab.evaluate("$('play').ariaLabel") == "pause"
        until(lambda: tab.locator(".packet").count() > 0)
        tab.evaluate("$('speed').value = 4")
        until(lambda: tab.evaluate("!playing"))
        assert tab.evaluate("at") == 3
        assert tab.locator("[role=gridcell].whole").count() == 5
        tab.evaluate("$('speed').value = 1")
        tab.click("#play")
        until(lambda: tab.evaluate("at > 0 && at < 3 && ($('play').click(), true)"))
        assert not tab.evaluate("playing")
        assert tab.evaluate("$('play').ariaLabel") == "play"


def test_without_motion_nothing_travels(chromium: Browser) -> None:
    watch = """window.most = 0; new MutationObserver(() => {
        most = Math.max(most, document.querySelectorAll('.packet').length)
    }).observe(document.querySelector('.panel'), { subtree: true, childList: true })"""
    with opened(chromium, page("all_reduce.ring"), **STILL) as tab:
        tab.evaluate(watch)
        tab.keyboard.press("ArrowRight")
        assert tab.evaluate("at") == 1
        tab.evaluate("$('speed').value = 4, $('play').click()")
        until(lambda: tab.evaluate("!playing"))
        assert tab.evaluate("[at, most, document.getAnimations().length]") == [8, 0, 0]


def test_two_go_in_step_by_round_or_by_clock(chromium: Browser) -> None:
    link = Link(latency_s=1e-3, bytes_per_s=1e6)
    both = page("all_reduce.ring", "all_reduce.recursive_doubling", p=8, nbytes=8000, link=link)
    clocks = "[...document.querySelectorAll('.clock')].map(e => e.textContent)"
    with opened(chromium, both, **STILL) as tab:
        # 14 * (1 + 1), 3 * (1 + 8)
        for key, times in ("Home", ("0 ns", "0 ns")), ("ArrowRight", ("2 ms", "9 ms")), ("End", ("28 ms", "27 ms")):
            tab.keyboard.press(key)
            assert tab.evaluate(clocks) == [f"{times[0]} of 28 ms", f"{times[1]} of 27 ms"]
        sets(tab, "pace", "'clock'")
        for ms in (2, 4, 6, 8, 9, 10):
            tab.keyboard.press("ArrowRight")
            assert tab.evaluate(clocks) == [f"{ms} ms of 28 ms", f"{ms} ms of 27 ms"]
            assert tab.evaluate("panels.map(p => p.stage.state)") == [ms // 2, ms // 9]
        tab.keyboard.press("End")
        assert tab.evaluate("panels.map(p => p.stage.state)") == [14, 3]
        assert tab.locator("[role=gridcell].whole").count() == tab.locator("[role=gridcell]").count()
        sets(tab, "pace", "'round'")
        tab.evaluate("jump(2)")
        sets(tab, "bytes", "1 << 20")
        assert tab.evaluate("at") == 2
        tab.keyboard.press("Home")
        assert tab.evaluate(clocks) == ["0 ns of 1.85 s", "0 ns of 3.15 s"]


def test_segments_repeat_all_rounds(chromium: Browser) -> None:
    with opened(chromium, page("reduce_scatter.ring"), **STILL) as tab:
        sets(tab, "segments", "4")
        assert tab.evaluate("+$('at').max") == 16
        for stop, segment, words in ((0, 1, "before"), (4, 1, "round 3"), (5, 2, "round 0"), (16, 4, "round 3")):
            tab.evaluate(f"jump({stop})")
            assert tab.evaluate(ROUND).startswith(f"segment {segment} of 4 · {words}")
        whole = tab.evaluate("times[0][16]")
        sets(tab, "segments", "1")
        assert whole == pytest.approx(tab.evaluate("times[0][4]") + 12 * Link().latency_s)


@pytest.mark.parametrize("view", ["rows", "ring", "tree"])
def test_hosts_have_frames_and_dashed_links(chromium: Browser, view: str) -> None:
    schedule = spanning("all_reduce", Hosts.parse("2x2:round_robin"), rails=2)
    far = [any((row[2] - row[1]) % 2 for row in schedule.rows.tolist() if row[0] == k) for k in range(schedule.rounds)]
    assert any(far)
    with opened(chromium, html(schedule), **STILL) as tab:
        tab.evaluate(f"view('{view}')")
        notes = tab.evaluate("[...document.querySelectorAll('.note')].map(e => e.textContent)")
        assert {note for note in notes if note.startswith("host")} == {"host 0", "host 1"}
        assert tab.locator(".host, .hostarc").count() == (0 if view == "tree" else 2)
        for number in range(schedule.rounds):
            tab.keyboard.press("ArrowRight")
            assert bool(tab.locator("svg[role=grid] .arrow.far").count()) == far[number]
        rows = tab.evaluate("[...document.querySelectorAll('[role=row]')].map(r => r.ariaLabel)")
        assert rows == [f"rank {k}" for k in (0, 2, 1, 3)]


def test_wrong_slots_are_framed(chromium: Browser) -> None:
    with opened(chromium, html(trace(twice, 2, 1, "all_reduce")), **STILL) as tab:
        assert "counted twice" in tab.evaluate("document.querySelector('.fault').textContent")
        assert tab.locator("[role=gridcell].wrong").count() == 0
        tab.keyboard.press("End")
        assert tab.locator("[role=gridcell].wrong").count() == 2
        tab.evaluate("point(panels[0], 1), 0")
        assert "ranks 0,1, 0 more than once" in tab.evaluate("$('tip').textContent")
