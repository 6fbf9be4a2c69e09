/* Reads a chart that a method declares as plain data (`Begin.charts`) into a spec that chart.js draws.
   Knows kinds of charts; knows no method. */

import { DASHES, edges, flat, numbered, roundAt, roundAxis, shownRounds } from './charts.js';
import { step } from './chart.js';
import { dig } from '../records/fold.js';
import { W } from '../words/words.js';

const SYMBOLS = { circle: '●', diamond: '◆', 'diamond-open': '◇' };

export function declared(chart) {
  return {
    id: chart.id,
    title: chart.title,
    help: chart.help,
    x: W.charts.round,
    whole: true,
    y: chart.y,
    right: chart.y_right,
    build(race, c) {
      const lane = race.focused;
      const rounds = lane ? shownRounds(race, lane) : [];
      // Names, colours and axes are those of the whole race: where a replay begins, before its first round, they stand.
      const whole = linesOf(chart, lane?.rounds ?? []);
      if (!whole.length) return null;
      const shown = new Map(linesOf(chart, rounds).map((l) => [l.name, l]));
      const lines = whole.map((l) => ({ ...l, ...(shown.get(l.name) ?? { x: [], y: [] }) }));
      for (const l of lines) {
        const own = lines.find(({ name }) => name === l.beside) ?? l;
        l.colour = l.marked ? c.relaxed : c.series[own.place % c.series.length];
        l.dash = own === l ? DASHES[l.place % DASHES.length] : 'dot';
      }
      const most = Math.max(1, ...(lane?.rounds ?? []).map((r) => r.path.length - 1));
      const [low, high] = chart.y_range ?? bounds(whole.filter((l) => l.axis === 'left'));
      const traces = lines.map((l) => draw(chart.kind, l));
      const last = lines.map((l) => [l.name, l.y.at(-1)]);
      if (chart.shade === 'accepted') traces.unshift(accepted(rounds, high, most, c));
      return {
        traces,
        ymin: low,
        ymax: high,
        ...roundAxis(race, lane),
        right: chart.y_right ? bounds(whole.filter((l) => l.axis === 'right')) : null,
        legend: [
          ...lines.map((l) => ({
            name: l.points ? `${l.name} (${l.x.length})` : l.name,
            colour: l.colour,
            dash: l.points ? SYMBOLS[l.symbol] : l.dash,
          })),
          ...(chart.shade === 'accepted'
            ? [{ name: W.charts.shaded(most), colour: c.shade, fill: true }]
            : []),
        ],
        say: W.charts.declaredSay(chart.title, lane.title, last),
      };
    },
    click: (race, point) => race.select({ lane: race.focus, round: roundAt(point.x) }),
  };
}

/** The lines of all series. A line's place decides its colour, and is the same in every race. */
function linesOf(chart, rounds) {
  return chart.series.flatMap((series, at) => {
    const lines = read(series, rounds);
    const plain = lines.filter((l) => !l.marked);
    return lines.map((l) => ({ ...l, place: at + Math.max(0, plain.indexOf(l)) }));
  });
}

/** The lines of one series: one for a number, one for each key of an object, points for a list (marked ones apart). */
function read(series, rounds) {
  const lines = new Map();
  const add = (name, x, y, more) => {
    if (y === null || y === undefined) return;
    if (!lines.has(name))
      lines.set(name, { name, x: [], y: [], axis: series.axis, beside: series.beside, ...more });
    lines.get(name).x.push(x);
    lines.get(name).y.push(Number(y));
  };
  for (const r of rounds) {
    const value = dig(r, series.path);
    if (Array.isArray(value)) {
      const nodes = series.nodes && dig(r, series.nodes);
      const marks = new Set([series.mark && dig(r, series.mark)].flat());
      const through = r.path.filter((_, at) => r.tokens[at - 1]?.origin === 'relaxed');
      value.forEach((v, i) => {
        const node = Array.isArray(nodes) ? nodes[i] : null;
        const [name, symbol] = (through.includes(node) && [W.origins.relaxed, 'diamond']) ||
          (marks.has(node) && [series.marked, 'diamond-open']) || [series.name, 'circle'];
        const more = { points: true, marked: symbol !== 'circle', symbol };
        add(name, numbered(r) + (i + 0.5) / value.length, v, more);
      });
    } else if (value && typeof value === 'object') {
      for (const [key, v] of Object.entries(value)) add(W.views[key] ?? key, numbered(r), v);
    } else add(series.name, numbered(r), value);
  }
  return [...lines.values()];
}

function draw(kind, l) {
  const axis = l.axis === 'right' ? { yaxis: 'y2' } : {};
  if (l.points) {
    return flat(l.x, l.y, {
      name: l.name,
      mode: 'markers',
      ...axis,
      marker: { color: l.colour, size: 6, symbol: l.symbol },
    });
  }
  const shape = kind === 'lines' ? 'linear' : 'hv';
  const width = kind === 'stack' ? 0.5 : l.beside ? 1 : 2;
  const steps = shape === 'hv' && l.x.length;
  const hold = steps ? { x: [...l.x, l.x.at(-1) + 1], y: [...l.y, l.y.at(-1)] } : l;
  return flat(hold.x, hold.y, {
    name: l.name,
    ...axis,
    ...(kind === 'stack' ? { stackgroup: 'one', fillcolor: l.colour } : {}),
    line: { color: l.colour, width, dash: l.dash, shape },
  });
}

/** Rounds that accepted drafted tokens, as pale bars in the background: as high as the chart where
 *  they are the most of the race. */
function accepted(rounds, high, most, c) {
  const y = rounds.map((r) => (high * (r.path.length - 1)) / most);
  return flat(edges(rounds), [...y, y[y.length - 1] ?? 0], {
    name: W.charts.shaded(most),
    fill: 'tozeroy',
    fillcolor: c.shade,
    line: { shape: 'hv', width: 0 },
    hoverinfo: 'skip',
  });
}

function bounds(lines) {
  const values = lines.flatMap((l) => l.y).filter(Number.isFinite);
  const high = Math.max(0, ...values);
  const large = () => step(high * 1.05, high > 20 ? 10 : 1);
  return [Math.min(0, ...values), high <= 1 ? Math.max(0.1, step(high, 0.1)) : large()];
}
