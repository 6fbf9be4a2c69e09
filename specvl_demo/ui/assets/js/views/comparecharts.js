/* The chart of a bench: acceptance by depth. */

import { DASHES, flat } from './charts.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

/** @import { Bench } from '../state/bench.js' */

/** Lines over a common axis, one a row. */
function lines(c, rows, more) {
  const drawn = rows.map(({ number, ...row }) => ({
    ...row,
    colour: c.lanes[number],
    dash: DASHES[Math.max(0, number - 1)],
  }));
  return {
    traces: drawn.map(({ name, x, y, colour, dash }) =>
      flat(x, y, {
        name,
        mode: 'lines+markers',
        line: { color: colour, dash, width: 2 },
        marker: { color: colour, size: 9 },
      }),
    ),
    legend: drawn.map(({ name, colour, dash }) => ({ name, colour, dash })),
    say: drawn
      .map(({ name, y }) => `${name}: ${y.map((v) => fmt.number(v)).join(', ')}`)
      .join('; '),
    ...more,
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
