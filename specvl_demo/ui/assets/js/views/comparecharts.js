/* The charts of a bench: speedups, acceptance by depth, speedups by kind of question. */

import { DASHES, flat, line } from './charts.js';
import { COMPARE } from '../words/comparewords.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

/** @import { Bench } from '../state/bench.js' */

const drafting = (rows) => rows.filter((row) => row.name !== 'ar');
/** Lines, or points of kinds that have no order, over a common axis, one a row. */
function lines(c, rows, { mode = 'lines+markers', ...more }) {
  const drawn = rows.map(({ number, ...row }) => ({
    ...row,
    colour: c.lanes[number],
    dash: DASHES[Math.max(0, number - 1)],
  }));
  const points = mode === 'markers' ? 'point' : null;
  return {
    traces: drawn.map(({ name, x, y, colour, dash }) =>
      flat(x, y, {
        name,
        mode,
        line: { color: colour, dash, width: 2 },
        marker: { color: colour, size: 9 },
      }),
    ),
    legend: drawn.map(({ name, colour, dash }) => ({ name, colour, dash: points ?? dash })),
    say: drawn
      .map(({ name, y }) => `${name}: ${y.map((v) => fmt.number(v)).join(', ')}`)
      .join('; '),
    ...more,
  };
}

/** Speedup of every method with its interval. @param {Bench} bench */
export function speeds(bench) {
  return {
    id: 'bench-speed',
    title: COMPARE.speeds,
    help: COMPARE.speedsHelp,
    x: W.charts.times,
    y: '',
    xunit: 0.5,
    hover: 'closest',
    wanted: (rows) => drafting(rows).some((r) => r.speedup_vs_ar !== null),
    build(_, c) {
      const rows = drafting(bench.report?.rows ?? []).filter((r) => r.speedup_vs_ar !== null);
      if (!rows.length) return null;
      const x = rows.map((r) => r.speedup_vs_ar);
      const reach = (side) => rows.map((r, i) => Math.abs((r.interval?.[side] ?? x[i]) - x[i]));
      return {
        traces: [
          {
            type: 'scatter',
            mode: 'markers',
            name: COMPARE.speeds,
            x,
            y: rows.map((_row, i) => i),
            text: rows.map((r) => r.method),
            hoverinfo: 'text+x',
            marker: { color: rows.map((r) => c.lanes[r.colour]), size: 9 },
            error_x: { type: 'data', array: reach(1), arrayminus: reach(0), color: c.muted },
          },
        ],
        ylabels: rows.map((r) => r.method),
        xmax: Math.max(1, ...rows.map((r, i) => r.interval?.[1] ?? x[i])) * 1.05,
        ymin: rows.length - 0.5,
        ymax: -0.5,
        shapes: [{ ...line(0, c.muted), xref: 'x', yref: 'paper', x0: 1, x1: 1, y0: 0, y1: 1 }],
        say: rows.map((r, i) => `${r.method} ${fmt.times(x[i])}`).join(', '),
      };
    },
  };
}

/** How often a drafted position is accepted, by its depth; positions that were not drafted do not
 *  count. @param {Bench} bench */
export function depths(bench) {
  return {
    id: 'bench-depth',
    title: W.charts.byDepth,
    help: W.charts.byDepthHelp,
    x: W.charts.depth,
    y: W.charts.percent,
    xunit: 1,
    whole: true,
    wanted: (rows) => rows.some((r) => r.accepted_by_depth?.length),
    build(_, c) {
      const rows = (bench.report?.rows ?? []).filter((r) => r.accepted_by_depth?.length);
      const drawn = rows.map((r) => ({
        name: r.method,
        number: r.colour,
        x: r.accepted_by_depth.map((_share, i) => i + 1),
        y: r.accepted_by_depth.map((share) => 100 * share),
      }));
      const deepest = Math.max(1, ...drawn.map(({ x }) => x.length));
      return lines(c, drawn, { xmin: 0.8, xmax: deepest, xend: deepest + 0.2, ymax: 104 });
    },
  };
}

/** Speedup by kind of question. @param {Bench} bench */
export function kinds(bench) {
  const names = (rows) => Object.keys(rows[0]?.by_kind ?? {});
  return {
    id: 'bench-kind',
    title: COMPARE.kinds,
    help: COMPARE.kindsHelp,
    x: COMPARE.kind,
    y: W.charts.times,
    wanted: (rows) =>
      names(rows).length > 1 && drafting(rows).some((r) => r.speedup_vs_ar !== null),
    build(_, c) {
      const rows = drafting(bench.report?.rows ?? []);
      const all = names(rows);
      const drawn = rows.map((r) => ({
        name: r.method,
        number: r.colour,
        x: all.map((_kind, i) => i),
        y: all.map((kind) => r.by_kind[kind].speedup_vs_ar),
      }));
      const top = Math.max(1.5, ...drawn.flatMap(({ y }) => y.map((v) => v ?? 0)));
      const ends = { xmin: -0.3, xmax: all.length, xend: all.length - 0.7 };
      const shapes = [line(1, c.muted)];
      const mode = 'markers';
      return lines(c, drawn, { ...ends, mode, ymax: top * 1.1, xlabels: all, shapes });
    },
  };
}
