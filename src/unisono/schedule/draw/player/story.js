// One table as the page knows it: who holds what in every state, where it came from and where it goes, in words.
// Nothing is computed from the rules of an algorithm: contents come with the data, and are only looked up here.

const COPY = 0, ADD = 1, JOIN = 2;
const VERBS = ["copied", "added", "joined"];

// [0, 1, 2, 5] -> "0..2,5"
function spans(numbers) {
  const runs = [];
  for (const number of numbers) {
    const run = runs[runs.length - 1];
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) =>
    first === last ? `${first}` : last === first + 1 ? `${first},${last}` : `${first}..${last}`).join(",");
}

class Story {
  constructor(data) {
    Object.assign(this, data);
    this.width = data.slots.length;
    this.cells = data.ranks.length * this.width;
    this.held = data.held.map(runs => runs.flatMap(([first, last, chunk]) =>
      Array.from({ length: last - first + 1 }, (_, k) => ({ rank: first + k, chunk }))));
    this.rounds = data.rounds.map(round => ({ ...round, moves: round.moves.map(([from, to, source, target, op, carries, far]) => (
      { from, to, source, target, op, carries, far })) }));
    this.states = [Int32Array.from(data.before)];
    this.arrivals = Array.from({ length: this.cells }, () => []);
    this.departures = Array.from({ length: this.cells }, () => []);
    this.rounds.forEach(({ moves, writes }, number) => {
      const state = Int32Array.from(this.states[number]);
      for (const [cell, held] of writes) state[cell] = held;
      this.states.push(state);
      for (const move of moves) {
        if (move.to >= 0) this.arrivals[move.to].push({ number, move });
        if (move.from >= 0) this.departures[move.from].push({ number, move });
      }
    });
  }

  rank(cell) { return this.ranks[Math.floor(cell / this.width)]; }
  slot(cell) { return this.slots[cell % this.width]; }
  title(cell) { return `rank ${this.rank(cell)} · ${this.slot(cell).name}`; }
  whole(cell, state) { return this.must[cell] >= 0 && this.states[state][cell] === this.must[cell]; }

  // How many slots of the result hold what they must, and how many there are.
  progress(state) {
    let done = 0, all = 0;
    for (let cell = 0; cell < this.cells; cell++) {
      if (this.must[cell] >= 0) { all++; done += this.whole(cell, state); }
    }
    return [done, all];
  }

  // "ranks 0..2", with the number of their chunk where it is not the slot's own.
  contributions(held, own) {
    const chunks = new Map();
    for (const { rank, chunk } of this.held[held]) chunks.set(chunk, [...(chunks.get(chunk) || []), rank]);
    return [...chunks].map(([chunk, ranks]) => {
      const twice = [...new Set(ranks.filter((rank, k) => ranks.indexOf(rank) < k))];
      const once = [...new Set(ranks)];
      const text = `${once.length > 1 ? "ranks" : "rank"} ${spans(once)}`;
      return text + (chunk === own ? "" : ` (their chunk ${chunk})`) + (twice.length ? `, ${spans(twice)} more than once` : "");
    }).join("; ");
  }

  // What there is to say of a cell in a state, as sentences.
  describe(cell, state) {
    const held = this.states[state][cell], said = [];
    if (held < 0) said.push("Empty.");
    else {
      const what = `contributions of ${this.contributions(held, this.slot(cell).chunk)}`;
      const many = new Set(this.held[held].map(({ rank }) => rank)).size;
      said.push(this.full > 1 ? `Holds the ${what}: ${many} of ${this.total}.` : `Holds the data of ${this.contributions(held, this.slot(cell).chunk)}.`);
    }
    if (this.whole(cell, state)) said.push("Complete.");
    const last = this.arrivals[cell].filter(({ number }) => number < state);
    const latest = last.filter(({ number }) => number === last[last.length - 1].number);
    if (latest.length) {
      const { number, move } = latest[0];
      said.push(`Round ${number}: ${VERBS[move.op]} from ${this.others(latest, "source")}.`);
    }
    const next = this.departures[cell].filter(({ number }) => number >= state);
    const soon = next.filter(({ number }) => number === next[0].number);
    if (soon.length) said.push(`Round ${soon[0].number}: goes to ${this.others(soon, "target")}.`);
    if (this.wrong[state].includes(cell)) said.push("This is wrong.");
    return said;
  }

  others(events, side) {
    const ranks = [...new Set(events.map(({ move }) => move[side]))].sort((a, b) => a - b);
    return `${ranks.length > 1 ? "ranks" : "rank"} ${spans(ranks)}`;
  }

  // The moves that brought the cell what it holds, and those that take it on.
  traces(cell, state) {
    const last = this.arrivals[cell].filter(({ number }) => number < state);
    const next = this.departures[cell].filter(({ number }) => number >= state);
    return [...last.filter(({ number }) => number === last[last.length - 1].number),
            ...next.filter(({ number }) => number === next[0].number)].map(({ move }) => move);
  }
}
