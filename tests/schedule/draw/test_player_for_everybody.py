"""The page in a real browser: on a phone, in dark colours, without motion, read by label."""

from __future__ import annotations

import pytest

from tests.schedule.draw.pages import STILL, at, table
from tests.support.browser import Browser, missing
from unisono.schedule.draw import html

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_without_motion_nothing_travels(chromium: Browser) -> None:
    with chromium.tab(html(table("all_reduce.ring")), **STILL) as tab:
        tab.value(
            "window.most = 0; new MutationObserver(() => {"
            " most = Math.max(most, document.querySelectorAll('.packet').length) })"
            ".observe(document.querySelector('.panel'), { subtree: true, childList: true })"
        )
        tab.key("ArrowRight")
        assert at(tab) == 1
        tab.value("$('speed').value = 4, $('play').click()")
        tab.wait("!playing")
        assert at(tab) == 8
        assert tab.value("most") == 0
        assert tab.value("document.getAnimations().length") == 0


@pytest.mark.parametrize("view", ["rows", "ring", "tree"])
@pytest.mark.parametrize("name", ["all_reduce.ring", "all_to_all.bruck"])
def test_a_phone_needs_no_scrolling_to_the_side(chromium: Browser, name: str, view: str) -> None:
    page = html(table(name, 8), table(name, 8), nbytes=1 << 30)
    with chromium.tab(page, 360, 740) as tab:
        tab.value(f"view('{view}'), go(2.5)")
        assert tab.value("document.documentElement.scrollWidth") == 360
        outside = tab.value(
            "[...document.querySelectorAll('button, select, input, [role=gridcell], .badge, .words, .status')]"
            ".map(e => e.getBoundingClientRect()).filter(b => b.width > 1 && (b.left < -1 || b.right > 361)).length"
        )
        assert outside == 0


CONTRAST = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const bright = ([r, g, b]) => [r / 255, g / 255, b / 255]
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [.2126, .7152, .0722][k], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = parse(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
  };
  const ratio = (a, b) => {
    const [x, y] = [bright(a), bright(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05);
  };
  const out = [], texts = "h1, h2, p, label, li, button, select, .status span, .words, .views span, kbd, #tip, .note";
  for (const e of document.querySelectorAll(texts)) {
    const style = getComputedStyle(e), color = e.namespaceURI.endsWith("svg") ? style.fill : style.color;
    out.push([`${e.tagName}.${e.getAttribute("class")}`, ratio(parse(color), ground(e))]);
  }
  for (const e of document.querySelectorAll(".who")) {
    out.push(["who", ratio(parse(getComputedStyle(e).fill), parse(getComputedStyle(e.previousSibling).fill))]);
  }
  for (const e of document.querySelectorAll(".badge text")) {
    out.push(["badge", ratio(parse(getComputedStyle(e).fill), parse(getComputedStyle(e.previousSibling).fill))]);
  }
  return out;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(chromium: Browser, scheme: str) -> None:
    page = html(table("all_gather.ring", 8), table("all_gather.bruck", 8))
    with chromium.tab(page, 1400, 900, prefers_color_scheme=scheme) as tab:
        ground = tab.value("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        tab.value("go(3), point(panels[0], 4), 0")
        found = tab.value(CONTRAST)
        assert len(found) > 60
        assert [(what, round(ratio, 2)) for what, ratio in found if ratio < 4.5] == []
        names = tab.value(
            "[...document.querySelectorAll('button, input, select')]"
            ".map(e => e.ariaLabel || e.labels[0]?.innerText || '')"
        )
        assert all(names)
