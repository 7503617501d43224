"""Draw a table as one HTML page that plays its rounds: chunks move from rank to rank."""

from __future__ import annotations

import json
from html import escape

from ..errors import ArgumentError
from ..schedule.table import Schedule
from .film import film
from .picture import Page
from .shapes import LABELS, arrows, boxes, key, lanes, layout
from .svg import STYLE, check_size, headline, looks
from .text import transfers

__all__ = ["html", "notebook"]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(title)s</title>
%(style)s
<style>
  :root { color-scheme: light dark }
  body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; font: 16px/1.5 ui-sans-serif, system-ui, sans-serif;
         background: #fff; color: #1f2933 }
  h1 { font-size: 1.4rem; margin: 0 }
  p { margin: .2rem 0 1rem; color: #66727f }
  nav { display: flex; gap: .5rem; align-items: center }
  button { font: inherit; min-width: 2.6rem; cursor: pointer }
  input { flex: 1 }
  svg { width: 100%%; max-height: 68vh }
  svg svg { overflow: hidden }
  pre { font: 13px/1.5 ui-monospace, monospace }
  #film { transition: transform .4s }
  .future, .past { visibility: hidden }
  @media (prefers-color-scheme: dark) { body { background: #12171d; color: #e6edf3 } p { color: #98a4b1 } }
</style>
<h1>%(title)s</h1>
<p>%(subtitle)s</p>
<nav>
  <button id="back" title="one round back (left arrow)">&#9664;</button>
  <button id="play" title="play or pause (space)">play</button>
  <button id="next" title="one round on (right arrow)">&#9654;</button>
  <input id="at" type="range" min="0" max="%(rounds)d" value="0" aria-label="round">
  <output id="round"></output>
</nav>
<svg class="unisono" viewBox="0 0 %(width)g %(whole)g" role="img" aria-labelledby="round">
  <g transform="translate(0 20)">%(lanes)s</g>
  <g transform="translate(4 %(base)g)">%(legend)s</g>
  <svg x="%(left)g" width="%(inner)g" height="%(height)g" viewBox="%(left)g -20 %(inner)g %(height)g">
    <g id="film">%(film)s</g>
  </svg>
</svg>
<pre id="words"></pre>
<script>
"use strict";
const words = %(words)s, pitch = %(pitch)g, box = [%(box)s];
const $ = id => document.getElementById(id), film = $("film"), last = words.length - 1;
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let at = 0, playing = false, run = 0;

function show(round, travel) {
  const mine = ++run;
  at = Math.max(0, Math.min(last, round));
  travel &&= at > 0;
  document.querySelectorAll(".packet").forEach(packet => packet.remove());
  film.style.transform = `translateX(${-pitch * Math.max(0, at - 1)}px)`;
  document.querySelectorAll(".state").forEach((state, k) => {
    state.classList.toggle("future", k > at || (travel && k === at));
    state.classList.toggle("past", k < at - 1);
  });
  document.querySelectorAll(".round").forEach((moves, k) => moves.classList.toggle("future", k !== at - 1));
  $("at").value = at;
  $("round").textContent = at ? `round ${at - 1}` : "before";
  $("words").textContent = words[at].join("\\n");
  if (travel) fly(mine);
}

function fly(mine) {
  const packets = [...document.querySelectorAll(".round")[at - 1].querySelectorAll(".move")].map(move => {
    const path = move.querySelector("path"), from = film.querySelector(`[data-slot="${move.dataset.from}"]`);
    const packet = from.cloneNode(true);
    packet.removeAttribute("data-slot");
    packet.setAttribute("class", "packet");
    film.append(packet);
    return { path, packet, length: path.getTotalLength() };
  });
  const begin = performance.now() + 400, takes = still ? 1 : 1000;
  requestAnimationFrame(function step(now) {
    if (mine !== run) return;
    const t = Math.max(0, Math.min(1, (now - begin) / takes)), eased = t * t * (3 - 2 * t);
    for (const { path, packet, length } of packets) {
      const point = path.getPointAtLength(length * eased);
      packet.setAttribute("transform", `translate(${point.x - box[0] * (1 - eased)} ${point.y - box[1] / 2})`);
    }
    if (t < 1) return requestAnimationFrame(step);
    show(at, false);
    if (playing) setTimeout(() => { if (playing) at < last ? show(at + 1, true) : pause(); }, 700);
  });
}

function pause() { playing = false; $("play").textContent = "play"; }
function play() {
  playing = true;
  $("play").textContent = "pause";
  show(at < last ? at + 1 : 0, at < last);
  if (!at) setTimeout(() => { if (playing) show(1, true); }, 700);
}
$("play").onclick = () => playing ? (pause(), show(at, false)) : play();
$("next").onclick = () => { pause(); if (at < last) show(at + 1, true); };
$("back").onclick = () => { pause(); show(at - 1, false); };
$("at").oninput = event => { pause(); show(+event.target.value, false); };
addEventListener("keydown", event => {
  if (event.key === " " && event.target.tagName === "BUTTON") return;
  const button = { ArrowRight: "next", ArrowLeft: "back", " ": "play" }[event.key];
  if (button) { event.preventDefault(); $(button).click(); }
});
show(0, false);
</script>
</html>
"""


def notebook(schedule: Schedule) -> str:
    """The player in a frame, as HTML; for a table that is too large to draw, the error's text."""
    try:
        return html(schedule)._repr_html_()
    except ArgumentError as error:
        return f"<pre>{escape(str(error))}</pre>"


def html(schedule: Schedule) -> Page:
    """Draw a schedule as a self-contained page that plays its rounds. Raises ArgumentError as `svg` does."""
    story = film(schedule)
    check_size(story)
    lay = layout(story, len(story.slots), 1)
    width = lay.x(1) + lay.width + 20
    height = schedule.ranks * lay.lane + 24
    parts = []
    for number, state in enumerate(story.states()):
        column = boxes(lay, number, state, story.slots, looks(story, number))
        parts.append(f'<g class="state">{column}</g>')
    for number, frame in enumerate(story.frames):
        parts.append(f'<g class="round">{arrows(lay, number, frame.moves)}</g>')
    legend, below = key(lay, story.ops(), width)
    title, *lines = headline(story)
    values = {
        "title": escape(title),
        "subtitle": escape(" · ".join(lines)),
        "style": STYLE,
        "rounds": schedule.rounds,
        "width": width,
        "height": height,
        "whole": height + below + 16,
        "legend": legend,
        "base": height + 16,
        "lanes": lanes(lay, story.slots, width),
        "left": LABELS - 4,
        "inner": width - LABELS + 4,
        "film": "".join(parts),
        "words": json.dumps([[], *(transfers(story, frame.moves) for frame in story.frames)], ensure_ascii=False),
        "pitch": lay.pitch,
        "box": f"{lay.width:g}, {lay.height:g}",
    }
    return Page(_PAGE % values)
