// The picture of one table in one state, or on the way to the next: cells, the arrows of the round, and the packets that travel.

const HUES = ["#2d78d2", "#c38700", "#4ba569", "#b487a5", "#5f2bf0", "#874b0f", "#00694b", "#784b87"];
const INKS = ["#000000", "#000000", "#000000", "#000000", "#ffffff", "#ffffff", "#ffffff", "#ffffff"];
const MOST_STRIPES = 16;  // contributions in a cell that have stripes of their own
const MOST_PACKETS = 600;  // in a round

function make(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

class Stage {
  constructor(story, svg) {
    Object.assign(this, { story, svg, view: "rows", state: 0, going: null, chosen: null });
    svg.setAttribute("role", "grid");
    svg.setAttribute("aria-label", `${story.name}: what the ranks hold`);
    this.ground = make("g", { "aria-hidden": "true" });
    this.arrows = make("g", { "aria-hidden": "true" });
    this.packets = make("g", { "aria-hidden": "true" });
    this.traces = make("g", { "aria-hidden": "true" });
    this.cells = Array.from({ length: story.cells }, (_, cell) =>
      make("g", { class: "cell", role: "gridcell", tabindex: cell ? -1 : 0, "data-cell": cell }));
    this.rows = story.ranks.map((rank, k) => {
      this.badge(k);
      return make("g", { role: "row", "aria-label": `rank ${rank}` }, make("rect", { class: "lane", rx: 8 }), this.badge(k),
                  ...this.cells.slice(k * story.width, (k + 1) * story.width));
    });
    svg.append(this.ground, ...this.rows, this.arrows, this.traces, this.packets);
  }

  badge(k) {
    const rank = this.story.ranks[k], hue = HUES[rank % HUES.length];
    const text = make("text", { y: 4, fill: INKS[rank % HUES.length], style: `fill:${INKS[rank % HUES.length]}` });
    text.textContent = rank;
    return make("g", { class: "badge" }, make("circle", { r: 11, fill: hue }), text);
  }

  // Put everything where it belongs in a picture of this width.
  arrange(view, width) {
    this.view = view;
    const lay = this.lay = layouts[view](this.story, width), { w, h } = lay.cell;
    this.svg.setAttribute("viewBox", `0 0 ${lay.width} ${lay.height}`);
    this.svg.setAttribute("height", lay.height);
    this.svg.classList.toggle("dense", h < 9 || w < 9);
    const ground = lay.links.map(d => make("path", { class: "link", d }));
    for (const { x, y, w, h } of lay.hosts) ground.push(make("rect", { class: "host", x, y, width: w, height: h, rx: 10 }));
    for (const { arc, wide } of lay.arcs || []) if (arc) ground.push(make("path", { class: "hostarc", d: arc, "stroke-width": wide }));
    const notes = [...lay.hosts.map((host, k) => ({ ...host.label, text: `host ${this.story.numbers[k]}` })),
                   ...(lay.arcs || []).map(({ label, text }) => ({ ...label, text, anchor: "middle" })),
                   ...lay.heads.map(head => ({ ...head, anchor: "middle" }))];
    for (const { x, y, text, anchor } of notes) {
      const note = make("text", { class: "note", x, y, "text-anchor": anchor || "start" });
      note.textContent = text;
      ground.push(note);
    }
    this.ground.replaceChildren(...ground);
    this.rows.forEach((row, k) => {
      const { x, y, w, h, badge } = lay.ranks[k], [lane, sign] = row.children;
      for (const [name, value] of Object.entries({ x, y, width: w, height: h })) lane.setAttribute(name, value);
      sign.setAttribute("transform", `translate(${badge.x} ${badge.y}) scale(${badge.scale ?? 1})`);
    });
    this.cells.forEach((group, cell) => {
      const { x, y } = lay.place(cell);
      group.setAttribute("transform", `translate(${x} ${y})`);
      group.held = undefined;
    });
    this.going = null;
    this.show(this.state, this.fraction || 0);
  }

  // Show a state (fraction 0), or the round after it on its way.
  show(state, fraction) {
    Object.assign(this, { state, fraction });
    const { story } = this, end = state === story.rounds.length;
    const fresh = new Set(fraction || !state ? [] : story.rounds[state - 1].writes.map(([cell]) => cell));
    const wrong = new Set(story.wrong[state]);
    this.cells.forEach((group, cell) => {
      const held = story.states[state][cell];
      if (group.held !== held) {
        group.held = held;
        group.replaceChildren(...this.content(held));
      }
      const look = `${held < 0 ? " void" : ""}${story.whole(cell, state) ? " whole" : ""}${fresh.has(cell) ? " fresh" : ""}`
        + `${wrong.has(cell) ? " wrong" : ""}${end && story.must[cell] < 0 ? " aside" : ""}${cell === this.chosen ? " chosen" : ""}`;
      if (group.look !== look) group.setAttribute("class", `cell${group.look = look}`);
      if (group.told !== held) {
        group.told = held;
        group.setAttribute("aria-label", `${story.title(cell)}. ${held < 0 ? "Empty." : `Contributions of ${story.contributions(held, story.slot(cell).chunk)}.`}`
          + (story.whole(cell, state) ? " Complete." : ""));
      }
    });
    const round = fraction || !state ? state : state - 1;  // after a round its arrows stay, pale
    const going = `${round} ${fraction > 0}`;
    if (going !== this.going) {
      this.going = going;
      const moves = (state || fraction) && round < story.rounds.length ? story.rounds[round].moves.slice(0, MOST_PACKETS) : [];
      const seen = moves.filter(({ from, to }) => from >= 0 && to >= 0);
      this.paths = seen.map(move => this.path(move));
      this.arrows.replaceChildren(...seen.map((move, k) => this.arrow(move, this.paths[k], fraction ? "" : "landed")));
      this.arrows.classList.toggle("crowd", seen.length > 100);
      this.packets.replaceChildren(...(fraction ? seen : []).map(move =>
        make("g", { class: "packet" }, ...this.content(move.carries))));
    }
    if (fraction) {
      const t = clamp((fraction - .06) / .84, 0, 1), eased = t * t * (3 - 2 * t), { w, h } = this.lay.cell;
      this.paths.forEach((path, k) => {
        const { x, y } = along(path, eased);
        const packet = this.packets.children[k];
        packet.setAttribute("transform", `translate(${x - w / 2} ${y - h / 2})`);
        packet.firstChild.setAttribute("fill-opacity", .9 * clamp(8 * t, 0, 1) * clamp(4 * (1 - t), 0, 1));  // it leaves a copy, and merges
      });
    }
  }

  // The frame of a cell, and a stripe for each contribution, at the place and in the colour of its rank.
  content(held) {
    const { story } = this, { w, h } = this.lay.cell, r = Math.min(4, h / 4, w / 4);
    const parts = [make("rect", { class: "frame", width: w, height: h, rx: r })];
    if (held === undefined || held < 0) return parts;
    const what = story.held[held];
    if (story.full > MOST_STRIPES) {
      const ranks = new Set(what.map(({ rank }) => rank));
      for (const rank of ranks) {
        if (ranks.has(rank - 1)) continue;
        let last = rank;
        while (ranks.has(last + 1)) last++;
        parts.push(make("rect", { class: "run", x: rank * w / story.total, y: 0, width: (last - rank + 1) * w / story.total, height: h }));
      }
      return parts;
    }
    const stripe = story.full > 1 ? (w - 2) / story.total : w - 2;
    for (const { rank, chunk } of what) {
      const x = 1 + (story.full > 1 ? rank * stripe : 0), wide = Math.max(stripe - (stripe > 5 && story.full > 1 ? 1 : 0), .6);
      parts.push(make("rect", { x, y: 1, width: wide, height: Math.max(h - 2, 1), rx: Math.min(2, r), fill: HUES[rank % HUES.length] }));
      const name = story.shifts ? `${rank}[${chunk}]` : `${rank}`;
      if (h >= 14 && wide >= 2 + 6.4 * name.length) {
        const text = make("text", { class: "who", x: x + wide / 2, y: h / 2 + 3.5, style: `fill:${INKS[rank % HUES.length]}` });
        text.textContent = name;
        parts.push(text);
      }
    }
    return parts;
  }

  // The way of a move from cell to cell, bent so that two that go there and back do not cover each other.
  path({ from, to }) {
    const { w, h } = this.lay.cell, [a, b] = [from, to].map(cell => {
      const { x, y } = this.lay.place(cell);
      return { x: x + w / 2, y: y + h / 2 };
    });
    const far = Math.hypot(b.x - a.x, b.y - a.y) || 1, middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    let bend = { x: -(b.y - a.y) * .16, y: (b.x - a.x) * .16 };
    if (this.lay.rows) {
      const side = this.story.width === 1 ? w * .7 + Math.abs(b.y - a.y) * .35 : Math.abs(b.y - a.y) * (b.y < a.y ? .3 : .14);
      bend = { x: Math.min(side, 220), y: 0 };
    }
    const via = { x: clamp(middle.x + bend.x, 4, 2 * this.lay.width - middle.x), y: middle.y + bend.y };
    if (far === 1) via.y -= 2 * h;
    return { a, via, b };
  }

  arrow({ op, far }, path, kind) {
    const { w, h } = this.lay.cell, { a, via, b } = path, small = Math.min(1, Math.max(.45, h / 20));
    const begin = edge(a, via, w, h), end = edge(b, via, w + 2, h + 2);
    const size = 10 * small, long = Math.hypot(end.x - via.x, end.y - via.y) || 1;
    const along = { x: (end.x - via.x) / long, y: (end.y - via.y) / long };
    const stop = { x: end.x - along.x * size * .8, y: end.y - along.y * size * .8 };
    const line = make("path", { class: "line", d: `M${begin.x} ${begin.y}Q${via.x} ${via.y} ${stop.x} ${stop.y}` });
    const turn = Math.atan2(along.y, along.x) * 180 / Math.PI;
    const head = make("g", { transform: `translate(${end.x} ${end.y}) rotate(${turn}) scale(${small})` }, ...headOf(op));
    return make("g", { class: `arrow ${kind}${far ? " far" : ""}` }, line, head);
  }

  // Show where the content of a cell came from and goes; null shows nothing.
  trace(cell) {
    if (this.chosen !== null) this.cells[this.chosen].classList.remove("chosen");
    this.chosen = cell;
    if (cell === null) return this.traces.replaceChildren();
    this.cells[cell].classList.add("chosen");
    const moves = this.story.traces(cell, this.state).filter(({ from, to }) => from >= 0 && to >= 0);
    this.traces.replaceChildren(...moves.map(move => this.arrow(move, this.path(move), "traced")));
  }
}

// The head of an arrow that ends at (0, 0): a triangle for a copy, a plus for an add, a ring for a join.
function headOf(op) {
  if (op === COPY) return [make("path", { class: "head", d: "M0 0l-9 -4.5v9z" })];
  const ring = make("circle", { class: op === ADD ? "head" : "open", cx: -5.5, cy: 0, r: 5 });
  return op === ADD ? [ring, make("path", { class: "plus", d: "M-8.5 0h6m-3 -3v6" })] : [ring];
}

function along({ a, via, b }, t) {
  const at = (p, q, r) => (1 - t) ** 2 * p + 2 * (1 - t) * t * q + t * t * r;
  return { x: at(a.x, via.x, b.x), y: at(a.y, via.y, b.y) };
}

// Where a line from the middle of a cell towards a point leaves the cell.
function edge(middle, towards, w, h) {
  const x = towards.x - middle.x, y = towards.y - middle.y;
  const share = Math.min(w / 2 / (Math.abs(x) || 1e-9), h / 2 / (Math.abs(y) || 1e-9), 1);
  return { x: middle.x + x * share, y: middle.y + y * share };
}
