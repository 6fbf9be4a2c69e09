/* From a chart that a method declares as data (`Begin.charts`) to a `ChartSpec`. Knows kinds of charts, no method. */

import { DASHES, scatter, shownRounds } from './charts.js';
import { ceilTo } from './chart.js';
import { countKept, dig } from '../records/fold.js';
import { W } from '../words/words.js';

const SYMBOLS = { circle: '●', diamond: '◆', 'diamond-open': '◇' };

const numberFromOne = ({ index }) => index + 1;

/** @returns {ChartSpec} */
export function declared(chart) {
  const { id, title, help, y } = chart;
  return {
    ...{ id, title, help, x: W.charts.round, y },
    whole: true,
    build: (race, colours) => build(chart, race, colours),
    click: (race, { x }) => race.select({ lane: race.focus, round: Math.floor(x) - 1 }),
  };
}

function build(chart, race, colours) {
  const lane = race.focused;
  const all = lane?.rounds ?? [];
  // Names, colours and axes are the whole race's: a replay does not change them.
  const whole = linesOf(chart, all);
  if (!whole.length) return { note: W.charts.later };
  const rounds = shownRounds(race, lane);
  const shown = new Map(linesOf(chart, rounds).map((l) => [l.name, l]));
  const lines = whole.map((l) => ({
    ...{ ...l, x: [], y: [], ...shown.get(l.name) },
    colour: l.marked ? colours.relaxed : colours.series[l.place % colours.series.length],
    dash: DASHES[l.place % DASHES.length],
  }));
  const most = Math.max(1, ...all.map(countKept));
  const [ymin, ymax] = chart.y_range ?? rangeOf(whole);
  const shades = chart.shade === 'accepted' ? [acceptedShade(rounds, ymax, most, colours)] : [];
  const entry = (l) =>
    l.points ? { ...l, name: `${l.name} (${l.x.length})`, dash: SYMBOLS[l.symbol] } : l;
  const shade = ({ name, fillcolor: colour }) => ({ name, colour, fill: true });
  const last = lines.map((l) => [l.name, l.y.at(-1)]);
  return {
    traces: [...shades, ...lines.map((l) => traceOf(chart.kind, l))],
    ymin,
    ymax,
    xmin: 1,
    xmax: race.roundsShown(lane) + 1,
    xend: lane.end ? all.length + 1 : null,
    legend: [...lines.map(entry), ...shades.map(shade)],
    say: W.charts.declaredSay(chart.title, lane.title, last),
  };
}

function linesOf(chart, rounds) {
  return chart.series.flatMap((series, at) => {
    const lines = linesOfSeries(series, rounds);
    const plain = lines.filter((l) => !l.marked);
    return lines.map((l) => ({ ...l, place: at + Math.max(0, plain.indexOf(l)) }));
  });
}

/** A line of numbers, one for each key of objects, or points of lists, marked ones apart. */
function linesOfSeries({ path, name, ...series }, rounds) {
  const lines = new Map();
  const addPoint = (line, x, y, more) => {
    if (y == null) return;
    if (!lines.has(line)) lines.set(line, { name: line, x: [], y: [], ...more });
    lines.get(line).x.push(x);
    lines.get(line).y.push(Number(y));
  };
  for (const r of rounds) {
    const value = dig(r, path);
    if (Array.isArray(value)) {
      const nodes = series.nodes && dig(r, series.nodes);
      const marks = [series.mark && dig(r, series.mark)].flat();
      const relaxed = r.path.filter((_, at) => r.tokens[at - 1]?.origin === 'relaxed');
      value.forEach((v, i) => {
        const node = nodes?.[i] ?? null;
        const [line, symbol] = (relaxed.includes(node) && [W.origins.relaxed, 'diamond']) ||
          (marks.includes(node) && [series.marked, 'diamond-open']) || [name, 'circle'];
        const more = { points: true, marked: symbol !== 'circle', symbol };
        addPoint(line, numberFromOne(r) + (i + 0.5) / value.length, v, more);
      });
    } else if (value && typeof value === 'object') {
      for (const [key, v] of Object.entries(value))
        addPoint(W.views[key] ?? key, numberFromOne(r), v);
    } else addPoint(name, numberFromOne(r), value);
  }
  return [...lines.values()];
}

function traceOf(kind, { colour: color, dash, name, points, symbol, x, y }) {
  if (points) return scatter(x, y, { name, mode: 'markers', marker: { color, size: 6, symbol } });
  const shape = kind === 'lines' ? 'linear' : 'hv';
  const line = { color, width: 2, dash, shape };
  const hold = kind === 'lines' || !x.length ? [] : [x.at(-1) + 1]; // the last step has its width too
  const held = hold.map(() => y.at(-1));
  return scatter([...x, ...hold], [...y, ...held], { name, line });
}

function acceptedShade(rounds, high, most, colours) {
  const y = rounds.map((r) => (high * countKept(r)) / most);
  const edges = rounds.length
    ? [...rounds.map(numberFromOne), numberFromOne(rounds.at(-1)) + 1]
    : [1];
  return scatter(edges, [...y, y.at(-1) ?? 0], {
    name: W.charts.shaded(most),
    fill: 'tozeroy',
    fillcolor: colours.shade,
    line: { shape: 'hv', width: 0 },
    hoverinfo: 'skip',
  });
}

function rangeOf(lines) {
  const values = lines.flatMap((l) => l.y).filter(Number.isFinite);
  const high = Math.max(0, ...values);
  const roundedUp = () => ceilTo(high * 1.05, high > 20 ? 10 : 1);
  return [Math.min(0, ...values), high <= 1 ? Math.max(0.1, ceilTo(high, 0.1)) : roundedUp()];
}
