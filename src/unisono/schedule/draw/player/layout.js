// Where ranks stand: as rows, on a ring, or as a tree of who talks to whom. A layout is {width, height, cell: {w, h}, ranks:
// [{x, y, w, h, badge}], place(cell): the left upper corner of a cell, links, hosts}; numbers are pixels.

const clamp = (number, least, most) => Math.max(least, Math.min(most, number));
const layouts = { rows: layRows, ring: layRing, tree: layTree };

function layRows(story, width) {
  const many = story.ranks.length, columns = story.width, label = 40, right = many > 1 ? 34 : 6;
  const gap = columns > 24 ? 1 : 3, tall = many <= 8 ? 26 : many <= 16 ? 20 : many <= 32 ? 12 : 7;
  const apart = many <= 8 ? 24 : many <= 16 ? 16 : many <= 32 ? 8 : 3;
  const w = clamp((width - label - right) / columns - gap, 2, 110);
  const left = label + Math.max(0, (width - label - right - columns * (w + gap)) / 2);
  const named = columns > 1 && w >= 22 ? 20 : 4;
  let y = named;
  const ranks = [], hosts = [];
  for (const host of story.hosts.length ? story.hosts : [story.ranks]) {
    const top = y;
    if (story.hosts.length) y += 20;
    for (const rank of host) {
      ranks[story.ranks.indexOf(rank)] = { x: label - 6, y, w: width - label + 2, h: tall + apart - 4, badge: { x: 17, y: y + (tall + apart - 4) / 2, scale: many <= 16 ? 1 : many <= 32 ? .8 : rank % 4 ? 0 : .7 } };
      y += tall + apart;
    }
    if (story.hosts.length) {
      hosts.push({ x: 1, y: top, w: width - 2, h: y - top - 1, label: { x: 10, y: top + 14 } });
      y += 8;
    }
  }
  const place = cell => ({ x: left + (cell % columns) * (w + gap), y: ranks[Math.floor(cell / columns)].y + (apart - 4) / 2 });
  const heads = named > 4 ? story.slots.map((slot, k) => ({ x: left + k * (w + gap) + w / 2, y: 12, text: slot.short })) : [];
  return { width, height: y + 4, cell: { w, h: tall }, ranks, place, links: [], hosts, heads, rows: true };
}

// The largest cards with all cells of a rank that a test of width and height allows.
function fitCards(story, fits) {
  const many = story.width, columns = many <= 4 ? many : many <= 16 ? Math.ceil(many / 2) : Math.ceil(Math.sqrt(many));
  const lines = Math.ceil(many / columns);
  for (let w = many === 1 ? 92 : 40; ; w--) {
    const h = clamp(w * .7, 2, 24), gap = w > 8 ? 3 : 1, card = { w: columns * (w + gap) + 8, h: lines * (h + gap) + 14 };
    if (w <= 2 || fits(card)) return { columns, w, h, gap, card };
  }
}

function cards(story, fit, centres, rest) {
  const { columns, w, h, gap, card } = fit;
  const ranks = centres.map(({ x, y }) => ({ x: x - card.w / 2, y: y - card.h / 2, ...card, badge: { x: x, y: y - card.h / 2 } }));
  const place = cell => {
    const { x, y } = ranks[Math.floor(cell / story.width)], k = cell % story.width;
    return { x: x + 5 + (k % columns) * (w + gap), y: y + 12 + Math.floor(k / columns) * (h + gap) };
  };
  return { cell: { w, h }, ranks, place, heads: [], ...rest };
}

function layRing(story, width) {
  const many = story.ranks.length, height = Math.min(width, 540), turn = k => -Math.PI / 2 + 2 * Math.PI * k / many;
  const radius = card => Math.max(10, Math.min((width - card.w) / 2 - 16, (height - card.h) / 2 - 22));
  const fit = fitCards(story, card => {
    const r = radius(card), step = 2 * r * Math.sin(Math.PI / many);
    return many === 1 || (r > 40 && Math.hypot(card.w, card.h + 10) * (many > 8 ? .8 : .95) < step + (many > 3 ? 0 : 90));
  });
  const r = radius(fit.card), middle = { x: width / 2, y: height / 2 + 4 };
  const order = story.hosts.length ? story.hosts.flat() : story.ranks;
  const on = (k, far = r) => ({ x: middle.x + far * Math.cos(turn(k)), y: middle.y + far * Math.sin(turn(k)) });
  const centres = story.ranks.map(rank => on(order.indexOf(rank)));
  let first = 0;
  const arcs = story.hosts.map((host, number) => {
    const from = on(first - .42), to = on(first + host.length - 1 + .42), wide = host.length - .16 > many / 2;
    const label = on(first + (host.length - 1) / 2, r * .5);
    first += host.length;
    return { arc: `M${from.x} ${from.y}A${r} ${r} 0 ${+wide} 1 ${to.x} ${to.y}`, wide: Math.max(fit.card.w, fit.card.h) * .8, label, text: `host ${story.numbers[number]}` };
  });
  const links = many > 2 ? [`M${middle.x - r} ${middle.y}a${r} ${r} 0 1 1 ${2 * r} 0a${r} ${r} 0 1 1 ${-2 * r} 0z`] : [];
  const lay = cards(story, fit, centres, { width, height: height + 8, links, hosts: [], arcs, middle });
  if (many > 16) {
    const far = r + Math.hypot(fit.card.w, fit.card.h) / 2 + 8, scale = many > 32 ? .62 : .8;
    story.ranks.forEach((rank, k) => { lay.ranks[k].badge = { ...on(order.indexOf(rank), far), scale }; });
  }
  return lay;
}

// The tree of the ranks that talk to each other, nearest to the root first: parent of each, and how far from the root.
function spanningTree(story) {
  const beside = new Map(story.ranks.map(rank => [rank, new Set()]));
  for (const { moves } of story.rounds) {
    for (const { source, target } of moves) {
      if (source !== target && beside.has(source) && beside.has(target)) { beside.get(source).add(target); beside.get(target).add(source); }
    }
  }
  const root = story.ranks.includes(story.root) ? story.root : story.ranks[0], parent = new Map([[root, null]]), seen = [root];
  for (let k = 0; k < seen.length || seen.length < story.ranks.length; k++) {
    if (k === seen.length) {  // a rank that nobody reaches stands beside the root
      const lone = story.ranks.find(rank => !parent.has(rank));
      parent.set(lone, null);
      seen.push(lone);
    }
    for (const other of beside.get(seen[k])) {
      if (!parent.has(other)) { parent.set(other, seen[k]); seen.push(other); }
    }
  }
  return { parent, seen };
}

function layTree(story, width) {
  const { parent, seen } = spanningTree(story), depth = new Map(), column = new Map();
  for (const rank of seen) depth.set(rank, parent.get(rank) === null ? 0 : depth.get(parent.get(rank)) + 1);
  const children = rank => seen.filter(other => parent.get(other) === rank);
  let leaves = 0;
  const settle = rank => {
    const below = children(rank);
    below.forEach(settle);
    const ends = [below[0], below[below.length - 1]].map(child => column.get(child));
    column.set(rank, below.length ? (ends[0] + ends[1]) / 2 : leaves++);
  };
  seen.filter(rank => parent.get(rank) === null).forEach(settle);
  const levels = 1 + Math.max(...depth.values()), step = width / leaves;
  const fit = fitCards(story, card => card.w + 6 <= step && card.h <= Math.max(60, 380 / levels));
  const down = fit.card.h + clamp(260 / levels, 20, 64);
  const centres = story.ranks.map(rank => ({ x: (column.get(rank) + .5) * step, y: 14 + fit.card.h / 2 + depth.get(rank) * down }));
  const at = rank => centres[story.ranks.indexOf(rank)];
  const links = seen.filter(rank => parent.get(rank) !== null).map(rank => {
    const from = at(parent.get(rank)), to = at(rank), middle = (from.y + to.y) / 2;
    return `M${from.x} ${from.y}C${from.x} ${middle} ${to.x} ${middle} ${to.x} ${to.y}`;
  });
  const arcs = story.hosts.flatMap((host, number) => host.map(rank => (
    { label: { x: at(rank).x, y: at(rank).y + fit.card.h / 2 + 11 }, text: `host ${story.numbers[number]}` })));
  return cards(story, fit, centres, { width, height: (levels - 1) * down + fit.card.h + (arcs.length ? 36 : 22), links, hosts: [], arcs });
}
