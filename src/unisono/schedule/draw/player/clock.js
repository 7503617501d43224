// What rounds cost: a round between hosts takes the link's latency and the bytes of the busiest host at the link's rate,
// and what moves inside hosts goes at the rate of a processor. Amounts in the data are fractions of the vector.

const three = number => String(+number.toPrecision(3));

function formatSeconds(seconds) {
  const [size, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e-3, "ms"] : seconds >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
  return `${three(seconds / size)} ${unit}`;
}

function formatBytes(count) {
  const step = count < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(count) / 10));
  return `${three(count / 1024 ** step)} ${["B", "KiB", "MiB", "GiB"][step]}`;
}

// The times at which the rounds of all segments end, the first of them 0. Segments go one after another.
function endTimes(rounds, network, bytes, segments) {
  const times = [0];
  for (let segment = 0; segment < segments; segment++) {
    for (const { cost: [starts, between, inside] } of rounds) {
      const share = bytes / segments;
      const takes = starts * network.latency + share * (between / network.rate + inside / network.inside);
      times.push(times[times.length - 1] + takes);
    }
  }
  return times;
}

// Where in its rounds a side is at a time; 2.5 is in the middle of round 2.
function roundsAt(times, time) {
  let round = 0;
  while (round + 1 < times.length && times[round + 1] <= time) round++;
  const takes = times[round + 1] - times[round];
  return takes ? round + (time - times[round]) / takes : round;
}

function timeAt(times, position) {
  const round = Math.min(Math.floor(position), times.length - 1);
  const takes = round + 1 < times.length ? times[round + 1] - times[round] : 0;
  return times[round] + (position - round) * takes;
}

// The stops of a play of several sides in lockstep, by round or by clock: {at: the position of each side, takes: the share
// of a stop's usual time that it takes to get there}. Between two stops, positions are in proportion.
function makeStops(sides, pace) {
  const longest = Math.max(...sides.map(times => times.length - 1));
  if (pace === "round") {
    return Array.from({ length: longest + 1 }, (_, stop) => ({ at: sides.map(times => Math.min(stop, times.length - 1)), takes: 1 }));
  }
  const events = [...new Set(sides.flat())].sort((a, b) => a - b);
  const whole = events[events.length - 1] || 1;
  return events.map((time, stop) => ({
    at: sides.map(times => roundsAt(times, time)),
    takes: stop ? longest * (time - events[stop - 1]) / whole : 1,
  }));
}
