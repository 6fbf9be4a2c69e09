/* The contents of the charts. Common ones are defined here; a method's own are declarations (plain
   data from the method table), read by `declared`, which knows no method. */

import { step } from './chart.js';
import { countDrafted, countKept, pace } from '../records/fold.js';
import { doubt, doubts, hedged } from '../records/verdict.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

const DASHES = ['solid', 'dash', 'longdash', 'dot', 'dashdot', 'longdashdot'];
const MOST_POINTS = 1500;
const SETTLED = 3;

const flat = (x, y, more) => ({
  type: 'scatter',
  mode: 'lines',
  x,
  y,
  hoverinfo: 'x+y+name',
  ...more,
});

/** Rounds of a lane that are shown, thinned if there are more than a chart can show. */
function shownRounds(race, lane) {
  const n = race.shown(lane);
  const every = Math.ceil(n / MOST_POINTS);
  return every <= 1
    ? lane.rounds.slice(0, n)
    : lane.rounds.slice(0, n).filter((_, i) => i % every === 0);
}

/** A round's number as the page counts them: from one. */
const numbered = (round) => round.index + 1;

/** Where steps over rounds begin, and where the last one ends. */
const edges = (rounds) =>
  rounds.length ? [...rounds.map(numbered), numbered(rounds.at(-1)) + 1] : [1];

/** The axis of rounds: its end is known as soon as the lane is over, in a replay from the start. */
const roundAxis = (race, lane) => ({
  xmin: 1,
  xmax: race.shown(lane) + 1,
  xend: lane.end ? lane.rounds.length + 1 : null,
});

/** The round at a place of that axis. */
const roundAt = (x) => Math.floor(x) - 1;

/** Decode speed of every lane over the baseline's, both after each round; for a lane whose times are not meaningful, the reason. */
export const speedup = {
  id: 'speedup',
  title: W.charts.speedup,
  help: W.charts.speedupHelp,
  told: true, // by the heading of the same name in the track
  x: W.charts.seconds,
  y: W.charts.times,
  xunit: 0.5,
  build(race, c) {
    const base = race.baseline;
    if (!base || !base.rounds.length) return null;
    const lines = [];
    const reasons = doubts(race);
    const without = reasons
      .flatMap(([, lanes]) => lanes)
      .filter((lane) => !hedged(doubt(race, lane)));
    for (const lane of race.rivals.filter((l) => !without.includes(l))) {
      const rough = hedged(doubt(race, lane));
      // A ratio of two or three steps says nothing yet and would stretch the axis.
      const points = shownRounds(race, lane)
        .map((r) => [lane.at(r.index + 1), pace(lane, base, r.index + 1)])
        .filter(([at, so], i, all) => so && (at.n_tokens >= SETTLED || i === all.length - 1))
        .map(([at, so]) => [at.clock_s, so]);
      if (!points.length) continue;
      const [x, y] = [0, 1].map((at) => points.map((point) => point[at]));
      const colour = c.lanes[lane.colour];
      const dash = rough ? 'dot' : DASHES[(lane.colour - 1) % DASHES.length];
      const name = rough ? W.charts.rough(lane.title, rough) : lane.title;
      lines.push({ name, x, y, colour, dash, opacity: rough ? 0.5 : 1 });
    }
    if (!lines.length) {
      const titles = (lanes) => (reasons.length > 1 ? lanes.map((l) => l.title) : []);
      const note = reasons.map(([why, lanes]) => W.charts.noSpeedup(why, titles(lanes))).join(' ');
      return note ? { note } : null;
    }
    const { rivals } = race;
    const ends = rivals.filter((l) => !without.includes(l));
    const of = (l) => (without.includes(l) ? null : (hedged(doubt(race, l)) ?? race.speedup(l)));
    return {
      traces: lines.map(({ x, y, name, colour: color, dash, opacity }) =>
        flat(x, y, { name, opacity, line: { color, width: 2, dash } }),
      ),
      legend: [
        ...lines.map(({ name, colour, dash }) => ({ name, colour, dash })),
        ...without.map((l) => ({
          name: W.charts.without(l.title),
          help: W.charts.noSpeedup(doubt(race, l)),
        })),
      ],
      note: reasons.map(([why]) => W.charts.noSpeedup(why)).join(' '),
      xmax: Math.max(0.2, ...lines.map((l) => l.x[l.x.length - 1])),
      xend: ends.every((l) => l.end) ? Math.max(...ends.map((l) => l.at(Infinity).clock_s)) : null,
      ymax: step(1.1 * Math.max(1.8, ...lines.flatMap((l) => l.y)), 1),
      shapes: [line(1, c.muted)],
      say: W.charts.speedupSay(rivals.map((l) => [l.title, fmt.times(of(l))])),
    };
  },
};

/** How often a drafted token is accepted, by its depth, given that all before it were: of a whole race, as the server
 *  found it (report/remarks.py). */
export const byDepth = {
  id: 'by-depth',
  title: W.charts.byDepth,
  help: W.charts.byDepthHelp,
  x: W.charts.depth,
  whole: true,
  y: W.charts.percent,
  build(race, c) {
    const lane = race.focused;
    if (!lane) return null;
    const { compared } = race.meta;
    if (!compared) return { note: W.charts.byDepthLater };
    const y = (compared.lanes[lane.name]?.accepted_by_depth ?? []).map((share) => 100 * share);
    if (!y.length) return { note: W.charts.byDepthNone };
    const few = lane.rounds.filter(countDrafted).length < race.rules.drafts;
    const deepest = y.length;
    const more = deepest < Math.max(...lane.rounds.map(countKept));
    const x = y.map((_, i) => i + 1);
    return {
      traces: [
        {
          ...{ type: 'bar', x, y, opacity: few ? 0.5 : 1 },
          ...{ marker: { color: c.draft }, name: W.charts.kept, hoverinfo: 'x+y' },
        },
      ],
      note: (few && W.charts.byDepthFew) || (more && W.charts.byDepthMore),
      legend: [{ name: W.charts.kept, colour: c.draft, fill: true }],
      xmin: 0.4,
      xmax: deepest,
      xend: deepest + 0.6,
      ymax: 100,
      say: W.charts.byDepthSay(x.map((d, i) => `${d}: ${fmt.percent(y[i] / 100)}`)),
    };
  },
};

const line = (y, colour) => ({
  type: 'line',
  xref: 'paper',
  x0: 0,
  x1: 1,
  y0: y,
  y1: y,
  line: { color: colour, width: 1, dash: 'dot' },
});

export { DASHES, edges, flat, line, numbered, roundAt, roundAxis, shownRounds };
