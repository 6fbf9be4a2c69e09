/* The charts that all races have, and a bench's; a method's own are declared (declared.js). */

import { ceilTo } from './chart.js';
import { countDrafted, countKept, speedupByToken } from '../records/fold.js';
import { doubt, doubts, hedged, speedOf, timed } from '../records/verdict.js';
import { W, fmt } from '../words/words.js';

export const DASHES = ['solid', 'dash', 'longdash', 'dot', 'dashdot', 'longdashdot'];
const SETTLED = 3; // a ratio of fewer tokens says nothing yet and would stretch the axis

export const scatter = (x, y, more) => ({
  type: 'scatter',
  mode: 'lines',
  x,
  y,
  hoverinfo: 'x+y+name',
  ...more,
});

const lineTrace = ({ x, y, name, colour: color, dash, opacity }, more) =>
  scatter(x, y, { name, opacity, line: { color, width: 2, dash }, ...more });

export const shownRounds = (race, lane) => lane.rounds.slice(0, race.roundsShown(lane));

/** null before there is a point. */
function runningSpeedup(race, lane, colours) {
  const rough = hedged(doubt(race, lane));
  const points = shownRounds(race, lane)
    .map(({ index }) => [
      lane.totalsAfter(index + 1),
      speedupByToken(lane, race.baseline, index + 1),
    ])
    .filter(([at, so], i, all) => so && (at.n_tokens >= SETTLED || i === all.length - 1));
  if (!points.length) return null;
  return {
    name: rough ? W.charts.rough(lane.title, rough) : lane.title,
    x: points.map(([at]) => at.clock_s),
    y: points.map(([, so]) => so),
    colour: colours.lanes[lane.colour],
    dash: rough ? 'dot' : DASHES[(lane.colour - 1) % DASHES.length],
    opacity: rough ? 0.5 : 1,
  };
}

/** After each round; of lanes that have none, the reason. @type {ChartSpec} */
export const speedup = {
  id: 'speedup',
  title: W.charts.speedup,
  help: W.charts.speedupHelp,
  x: W.charts.seconds,
  y: W.charts.times,
  xunit: 0.5,
  build(race, colours) {
    const { baseline, rivals } = race;
    if (!baseline?.rounds.length) return { note: W.charts.later };
    const { noSpeedup } = W.charts;
    const reasons = doubts(race);
    const shown = rivals.filter((lane) => timed(doubt(race, lane)));
    const without = rivals.filter((lane) => !shown.includes(lane));
    const lines = shown.map((lane) => runningSpeedup(race, lane, colours)).filter(Boolean);
    const titles = (lanes) => (lanes.length < rivals.length ? lanes.map((l) => l.title) : []);
    const note = reasons.map(([why, lanes]) => noSpeedup(why, titles(lanes))).join(' ');
    if (!lines.length) return { note: note || W.charts.later };
    const unknown = (lane) => ({
      name: W.charts.without(lane.title),
      help: noSpeedup(doubt(race, lane)),
    });
    const say = (lane) => [lane.title, fmt.times(speedOf(race, lane))];
    const ended = shown.every((lane) => lane.end);
    return {
      traces: lines.map((line) => lineTrace(line)),
      legend: [...lines, ...without.map(unknown)],
      note,
      xmax: Math.max(0.2, ...lines.map(({ x }) => x.at(-1))),
      xend: ended ? Math.max(...shown.map((lane) => lane.totalsAfter(Infinity).clock_s)) : null,
      ymax: ceilTo(1.1 * Math.max(1.8, ...lines.flatMap(({ y }) => y)), 1),
      shapes: [lineAtOne(colours)],
      say: W.charts.speedupSay(rivals.map(say)),
    };
  },
};

export const lineAtOne = ({ muted: color }) => ({
  ...{ type: 'line', xref: 'paper', x0: 0, x1: 1, y0: 1, y1: 1 },
  line: { color, width: 1, dash: 'dot' },
});

/** How often a drafted token is accepted, given that all before it were (report/remarks.py). */
const acceptance = {
  title: W.charts.byDepth,
  help: W.charts.byDepthHelp,
  x: W.charts.depth,
  y: W.charts.percent,
  whole: true,
};

const overDepth = (shares) => ({
  x: shares.map((_, i) => i + 1),
  y: shares.map((share) => 100 * share),
});

/** Of the lane in focus. @type {ChartSpec} */
export const byDepth = {
  id: 'by-depth',
  ...acceptance,
  build(race, { draft: colour }) {
    const lane = race.focused;
    if (!lane) return null;
    const { compared } = race.meta;
    if (!compared) return { note: W.charts.ended };
    const shares = compared.lanes[lane.name]?.accepted_by_depth ?? [];
    const deepest = shares.length;
    if (!deepest) return { note: W.charts.byDepthNone };
    const few = lane.rounds.filter(countDrafted).length < race.rules.drafts;
    const more = deepest < Math.max(...lane.rounds.map(countKept));
    const name = W.charts.kept;
    const look = { marker: { color: colour }, opacity: few ? 0.5 : 1, name, hoverinfo: 'x+y' };
    return {
      traces: [{ type: 'bar', ...overDepth(shares), ...look }],
      note: (few && W.charts.byDepthFew) || (more && W.charts.byDepthMore),
      legend: [{ name, colour, fill: true }],
      xmin: 0.4,
      xmax: deepest,
      xend: deepest + 0.6,
      ymax: 100,
      say: W.charts.byDepthSay(shares.map((share, i) => `${i + 1}: ${fmt.percent(share)}`)),
    };
  },
};

/** Of depths that a tenth of the rounds can have reached: deeper ones are of few drafts. */
const often = (shares) =>
  shares.filter((_, i) => shares.slice(0, i).reduce((a, b) => a * b, 1) >= 0.1);

/** @param {Bench} bench @returns {ChartSpec} */
export const benchByDepth = (bench) => ({
  id: 'bench-depth',
  ...acceptance,
  xunit: 1,
  build(_, colours) {
    const rows = (bench.report?.rows ?? []).filter((row) => row.accepted_by_depth?.length);
    const lines = rows.map(({ method: name, colour: number, accepted_by_depth: shares }) => ({
      name,
      ...overDepth(often(shares)),
      colour: colours.lanes[number],
      dash: DASHES[Math.max(0, number - 1)],
    }));
    const deepest = Math.max(1, ...lines.map(({ x }) => x.length));
    const values = ({ name, y }) => `${name}: ${y.map((v) => fmt.number(v)).join(', ')}`;
    return {
      traces: lines.map((line) =>
        lineTrace(line, { mode: 'lines+markers', marker: { color: line.colour, size: 9 } }),
      ),
      legend: lines,
      note: W.charts.byDepthMany,
      say: lines.map(values).join('; '),
      xmin: 0.8,
      xmax: deepest,
      xend: deepest + 0.2,
      ymax: 104,
    };
  },
});
