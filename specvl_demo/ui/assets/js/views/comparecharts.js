/* The chart of a bench: acceptance by depth. */

import { DASHES, flat } from './charts.js';
import { W, fmt } from '../words/words.js';

/** @import { Bench } from '../state/bench.js' */

/** The chart of how often a drafted position is accepted, by its depth. @param {Bench} bench */
export const depths = (bench) => ({
  id: 'bench-depth',
  title: W.charts.byDepth,
  help: W.charts.byDepthHelp,
  x: W.charts.depth,
  y: W.charts.percent,
  xunit: 1,
  whole: true,
  /** A line for each method. */
  build(_, c) {
    const rows = (bench.report?.rows ?? []).filter((r) => r.accepted_by_depth?.length);
    const lines = rows.map(({ method: name, colour: number, accepted_by_depth: shares }) => ({
      name,
      x: shares.map((_share, i) => i + 1),
      y: shares.map((share) => 100 * share),
      colour: c.lanes[number],
      dash: DASHES[Math.max(0, number - 1)],
    }));
    const deepest = Math.max(1, ...lines.map(({ x }) => x.length));
    return {
      traces: lines.map(({ name, x, y, colour: color, dash }) => {
        const line = { color, dash, width: 2 };
        return flat(x, y, { name, mode: 'lines+markers', line, marker: { color, size: 9 } });
      }),
      legend: lines.map(({ name, colour, dash }) => ({ name, colour, dash })),
      say: lines
        .map(({ name, y }) => `${name}: ${y.map((v) => fmt.number(v)).join(', ')}`)
        .join('; '),
      xmin: 0.8,
      xmax: deepest,
      xend: deepest + 0.2,
      ymax: 104,
    };
  },
});
