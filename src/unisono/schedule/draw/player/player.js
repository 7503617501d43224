// The page: panels with one table each, one time for all of them, and the controls.

const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const STOP_MS = 1300;  // for a round, at speed 1

const panels = data.tables.map(table => {
  const story = new Story(table);
  const element = document.createElement("section");
  element.className = "panel";
  element.setAttribute("aria-label", story.name);
  const add = (tag, kind, text = "") => {
    const child = document.createElement(tag);
    child.className = kind;
    child.textContent = text;
    element.append(child);
    return child;
  };
  if (data.tables.length > 1) add("h2", "", story.name);
  add("p", "quiet", story.lines.join(" · "));
  if (story.left_out) add("p", "quiet left-out", story.left_out);
  if (story.fault) add("p", "fault", story.fault);
  const svg = make("svg", {});
  element.append(svg);
  const slices = add("div", "slices"), status = add("div", "status");
  const [round, clock] = [document.createElement("span"), document.createElement("span")];
  round.className = "round";
  clock.className = "clock";
  status.append(round, clock);
  const bar = add("div", "bar").appendChild(document.createElement("div"));
  const words = add("pre", "words");
  words.tabIndex = 0;
  words.style.columnWidth = `${4 + Math.max(8, ...story.rounds.flatMap(({ words }) => words.map(line => line.length)))}ch`;
  words.setAttribute("aria-label", "transfers of the round");
  slices.setAttribute("aria-hidden", "true");
  $("panels").append(element);
  return { story, element, svg, slices, round, clock, bar, words, stage: new Stage(story, svg) };
});

let at = 0, playing = false, stops = [], times = [], segments = 1, last = 0;

// Vector, segments or pace have changed: what the rounds cost, and where the stops are. The play begins again, but
// for another vector in step by round.
function price() {
  const bytes = +$("bytes").value, before = stops.length;
  segments = +$("segments").value;
  times = panels.map(({ story }) => endTimes(story.rounds, data.network, bytes, segments));
  const pace = panels.length > 1 ? $("pace").value : "round";
  stops = makeStops(times, pace);
  $("at").max = stops.length - 1;
  for (const { slices } of panels) {
    slices.replaceChildren(...Array.from({ length: segments > 1 ? segments : 0 }, () => document.createElement("i")));
  }
  go(pace === "round" && stops.length === before ? at : 0);
}

// Go to a stop, or somewhere between two.
function go(to, tell = false) {
  at = clamp(to, 0, stops.length - 1);
  const stop = Math.floor(at), rest = at - stop, here = stops[stop].at, next = (stops[stop + 1] || stops[stop]).at;
  panels.forEach((panel, k) => show(panel, here[k] + rest * (next[k] - here[k]), times[k]));
  $("at").value = at;
  const said = panels.map(({ story, round }) => (panels.length > 1 ? `${story.name}: ` : "") + round.textContent).join("; ");
  $("at").setAttribute("aria-valuetext", said);
  if (tell) $("said").textContent = said;
  if (chosen) point(chosen.panel, chosen.cell);
}

function show(panel, position, times) {
  const { story, stage } = panel, rounds = story.rounds.length;
  const segment = position > 0 ? Math.ceil(position / rounds - 1e-9) - 1 : 0, local = position - segment * rounds;
  let state = Math.floor(local + 1e-6), fraction = Math.max(0, local - state);
  if (fraction < 1e-4) fraction = 0;
  if (still.matches && fraction) fraction = 0;
  stage.show(state, fraction);
  const [done, all] = story.progress(state), number = fraction ? state : state - 1;
  const where = number < 0 ? "before" : `round ${number} of 0..${story.rounds_in_all - 1}`;
  panel.round.textContent = (segments > 1 ? `segment ${segment + 1} of ${segments} · ` : "") + where
    + ` · ${done} of ${all} ${all === 1 ? "chunk" : "chunks"} complete`;
  const whole = times[times.length - 1];
  panel.clock.textContent = story.partial ? "" : `${formatSeconds(timeAt(times, position))} of ${formatSeconds(whole)}`;
  const longest = Math.max(...allTimes()) || 1;
  panel.bar.parentElement.style.width = `${Math.max(2, 100 * whole / longest)}%`;
  panel.bar.style.width = `${whole ? 100 * timeAt(times, position) / whole : 0}%`;
  [...panel.slices.children].forEach((slice, k) => { slice.className = k < segment ? "over" : k === segment && position ? "now" : ""; });
  const words = number < 0 ? "" : story.rounds[number].words.join("\n");
  if (panel.words.textContent !== words) panel.words.textContent = words;
}

const allTimes = () => times.map(each => each[each.length - 1]);

function tick(now) {
  if (!playing) return;
  const stop = Math.min(Math.floor(at), stops.length - 2), takes = Math.max(60, STOP_MS * stops[stop + 1].takes) / +$("speed").value;
  const wanted = at + Math.min(now - last, 100) / takes;
  last = now;
  // A round is seen to end before the next one begins, however long a frame took.
  go(Math.floor(wanted) > Math.floor(at) ? Math.floor(at) + 1 : wanted);
  if (at >= stops.length - 1) return pause(true);
  requestAnimationFrame(tick);
}

function play() {
  if (stops.length < 2) return;
  if (at >= stops.length - 1) go(0);
  playing = true;
  last = performance.now();
  sign();
  requestAnimationFrame(tick);
}

function pause(tell = false) {
  playing = false;
  sign();
  if (tell) go(at, true);
}

function sign() {
  $("play").setAttribute("aria-label", playing ? "pause" : "play");
  $("play-sign").setAttribute("d", playing ? "M3 2h3.5v12H3zM9.5 2H13v12H9.5z" : "M4 2v12l9-6z");
}

// One stop on or back. On its way the round is seen, unless motion is not wanted.
function step(by) {
  pause();
  walk = null;
  const goal = clamp(by > 0 ? Math.floor(at + 1e-6) + 1 : Math.ceil(at - 1e-6) - 1, 0, stops.length - 1);
  if (still.matches || by < 0 || goal === at) return go(goal, true);
  const from = at, begin = performance.now(), mine = {};
  walk = mine;
  requestAnimationFrame(function travel(now) {
    if (mine !== walk || playing) return;
    const share = clamp((now - begin) / 650, 0, 1);
    go(from + (goal - from) * share, share === 1);
    if (share < 1) requestAnimationFrame(travel);
    else walk = null;
  });
}
let walk = null;  // the step that is on its way

function jump(to) { pause(); walk = null; go(to, true); }

function view(name) {
  document.querySelector(`[name=view][value=${name}]`).checked = true;
  for (const { stage, element, svg } of panels) stage.arrange(name, Math.max(200, Math.floor(svg.clientWidth || element.clientWidth - 34)));
  if (chosen) point(chosen.panel, chosen.cell);
}

// The cell that is pointed at, or has the focus, and what there is to say of it.
let chosen = null;

function point(panel, cell) {
  if (chosen && chosen.panel !== panel) chosen.panel.stage.trace(null);
  chosen = { panel, cell };
  panel.stage.trace(cell);
  const { story, stage } = panel, title = document.createElement("b");
  title.textContent = story.title(cell);
  $("tip").replaceChildren(title, story.describe(cell, stage.state).join(" "));
  $("tip").hidden = false;
  const box = stage.cells[cell].getBoundingClientRect(), tip = $("tip").getBoundingClientRect();
  // Beside the cell, because its arrows mostly come from above and below; where that is too narrow, below it or above.
  const beside = [box.right + 12, box.left - 12 - tip.width].find(x => x >= 8 && x + tip.width <= innerWidth - 8);
  const under = box.bottom + 10 + tip.height < innerHeight ? box.bottom + 10 : box.top - tip.height - 10;
  const left = beside ?? clamp(box.left + box.width / 2 - tip.width / 2, 8, Math.max(8, innerWidth - tip.width - 8));
  $("tip").style.left = `${left}px`;
  $("tip").style.top = `${Math.max(8, beside === undefined ? under : box.top + box.height / 2 - tip.height / 2)}px`;
}

function unpoint() {
  if (!chosen) return;
  chosen.panel.stage.trace(null);
  chosen = null;
  $("tip").hidden = true;
}

for (const panel of panels) {
  const { svg, stage, story } = panel;
  const cellOf = event => event.target.closest(".cell");
  const enter = event => { const group = cellOf(event); if (group) point(panel, +group.dataset.cell); };
  svg.addEventListener("pointerover", event => cellOf(event) ? enter(event) : unpoint());
  svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") unpoint(); });
  svg.addEventListener("click", event => { const group = cellOf(event); if (group) group.focus(); });
  svg.addEventListener("focusin", enter);
  svg.addEventListener("focusout", unpoint);
  svg.addEventListener("keydown", event => {
    const cell = +event.target.dataset.cell, { width } = story, row = Math.floor(cell / width);
    const to = { ArrowRight: cell + 1, ArrowLeft: cell - 1, ArrowDown: cell + width, ArrowUp: cell - width,
                 Home: row * width, End: (row + 1) * width - 1 }[event.key];
    if (to === undefined || Number.isNaN(cell)) return;
    event.preventDefault();
    event.stopPropagation();
    if (to < 0 || to >= story.cells) return;
    stage.cells[cell].setAttribute("tabindex", -1);
    stage.cells[to].setAttribute("tabindex", 0);
    stage.cells[to].focus();
  });
}

function turnTheme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
}

function legend() {
  const stories = panels.map(({ story }) => story), ops = new Set(stories.flatMap(({ rounds }) => rounds.flatMap(({ moves }) => moves.map(({ op }) => op))));
  const item = (sign, words) => {
    const li = document.createElement("li");
    if (sign) {
      const svg = make("svg", { width: 34, height: 16, viewBox: "0 -8 34 16", "aria-hidden": "true" }, ...sign);
      li.append(svg);
    }
    li.append(words);
    $("legend").append(li);
  };
  const line = (op, far) => make("g", { class: `arrow${far ? " far" : ""}` }, make("path", { class: "line", d: "M1 0H24" }),
                                 make("g", { transform: "translate(33 0)" }, ...headOf(op)));
  if (stories.some(({ full }) => full > MOST_STRIPES)) item(null, "a bar is full when the contributions of all ranks are in it");
  else if (stories.some(({ full }) => full > 1)) {
    item([0, 1, 2, 4].map(k => make("rect", { x: 1 + 4 * k, y: -6, width: 3.4, height: 12, rx: 1, fill: HUES[k] })),
         "a stripe is the contribution of one rank, in its colour and at its place");
  } else item([make("rect", { x: 5, y: -7, width: 24, height: 14, rx: 3, fill: HUES[1] })], "the colour and the number say whose data it is");
  if (stories.some(({ shifts }) => shifts)) item(null, "2[0] is chunk 0 of rank 2");
  [...ops].sort().forEach(op => item([line(op, false)], ["copied", "added to what is there", "joined with what is there"][op]));
  if (stories.some(({ hosts }) => hosts.length)) item([line(COPY, true)], "from host to host");
  const frame = kind => [make("g", { class: `cell ${kind}` }, make("rect", { class: "frame", x: 5, y: -6, width: 24, height: 12, rx: 3 }))];
  item(frame("fresh"), "just written");
  item(frame("whole"), "complete");
  if (stories.some(({ wrong }) => wrong.some(cells => cells.length))) item(frame("wrong"), "wrong");
}

for (const power of data.sizes) $("bytes").append(new Option(formatBytes(power), power, false, power === data.bytes));
for (const count of [1, 2, 4, 8]) $("segments").append(new Option(count, count));
$("pace-label").hidden = panels.length < 2;
$("price").textContent = data.network.words;
for (const id of ["bytes", "segments", "pace"]) $(id).onchange = () => { pause(); walk = null; price(); };
for (const input of document.querySelectorAll("[name=view]")) input.onchange = () => view(input.value);
$("play").onclick = () => { walk = null; playing ? pause(true) : play(); };
$("next").onclick = () => step(1);
$("back").onclick = () => step(-1);
$("at").oninput = event => { pause(); walk = null; go(+event.target.value); };
$("at").onchange = () => jump(Math.round(at));  // let go, it comes to rest after a round
$("theme").onclick = turnTheme;

const KEYS = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => jump(0), End: () => jump(stops.length - 1),
  " ": () => $("play").click(), 1: () => view("rows"), 2: () => view("ring"), 3: () => view("tree"), t: turnTheme, Escape: unpoint,
};
addEventListener("keydown", event => {
  if (event.altKey || event.ctrlKey || event.metaKey || !KEYS[event.key]) return;
  const { tagName, type } = event.target;
  if (tagName === "SELECT" || (type === "radio" && event.key.startsWith("Arrow")) || (tagName === "BUTTON" && event.key === " ")) return;
  if (event.target.className === "words" && ["Home", "End"].includes(event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});
// A change of width moves everything.
let wide = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== wide) view(document.querySelector("[name=view]:checked").value);
  wide = contentRect.width;
}).observe($("panels"));
addEventListener("scroll", () => { if (chosen) point(chosen.panel, chosen.cell); }, { passive: true });

legend();
view("rows");
price();
