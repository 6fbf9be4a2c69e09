/* The trees of all rounds of the lane in focus, small; beneath, a number of its method's own. */

import { h, put, svg, term } from './dom.js';
import { countDrafted, countKept, dig } from '../records/fold.js';
import { shapeOf } from '../records/shapes.js';
import { W } from '../words/words.js';

const TREE_HEIGHT = 52;
const LINE_HEIGHT = 22; // of the line beneath them
const MOST_LEVEL = 9; // height of a level
const MOST_ROW = 8; // between two leaves
const LEAST_WIDTH = 10; // of a round
const ROOMY_WIDTH = 44; // where there is room
const KINDS = ['idle', 'rejected', 'kept', 'relaxed']; // of edges, the later above the earlier

export function strip(race, painter) {
  const line = svg('polyline');
  const current = svg('rect', { height: TREE_HEIGHT + LINE_HEIGHT, rx: 3 });
  const number = h('span.vl-facts');
  const header = h('header', h('h3', term(W.strip.title, W.strip.help)), number);
  let laid = null; // of the lane in focus
  const click = ({ clientX }) => {
    const { left, width } = laid.picture.getBoundingClientRect();
    const x = ((clientX - left) / width) * laid.ends.at(-1);
    const round = laid.ends.findIndex((end) => x < end);
    if (round >= 0) race.pick(laid.lane, { round });
  };
  const box = h('div.vl-tree-box', { click });
  const node = h('div.vl-strip', header, box);
  const draw = () => {
    const lane = race.focused;
    const shown = lane ? race.roundsShown(lane) : 0;
    node.hidden = !lane?.rounds.some(countDrafted);
    const width = box.clientWidth;
    if (node.hidden || !width) return;
    const key = [lane.name, lane.rounds.length, width, lane.begin.request].join();
    if (key !== laid?.key) {
      laid = { key, ...layOut(lane, width) };
      laid.picture.prepend(current);
      laid.picture.append(line);
      box.replaceChildren(laid.picture);
    }
    const { cells, ends, name, values, points } = laid;
    cells.forEach((cell, i) => (cell.style.display = i < shown ? '' : 'none'));
    line.setAttribute('points', points.slice(0, shown).join(' '));
    const index = Math.min(race.currentRound?.index ?? 0, shown - 1);
    put(number, `${lane.title}${name && ` · ${name} ${values[index]?.toFixed(2) ?? ''}`}`);
    const left = ends[index - 1] ?? 0;
    current.setAttribute('x', left);
    current.setAttribute('width', Math.max(0, (ends[index] ?? left) - left));
    if (box.scrollWidth > width) box.scrollLeft = left - width / 2;
  };
  painter.followRound(race, draw);
  new ResizeObserver(() => painter.now(draw)).observe(box);
  return node;
}

/** Rounds share the width of the box, or scroll; values and points are of the line beneath. */
function layOut(lane, boxWidth) {
  const shapes = lane.rounds.map(shapeOf);
  const deepest = Math.max(1, ...shapes.map(({ deep }) => deep));
  const widest = Math.max(...shapes.map((shape) => shape.wide));
  const room = boxWidth / shapes.length;
  const level = Math.min(MOST_LEVEL, (TREE_HEIGHT - 8) / deepest);
  const row = Math.min(MOST_ROW, Math.max(2, (Math.max(room, LEAST_WIDTH) - 6) / widest));
  const roomy = Math.min(room, Math.max(ROOMY_WIDTH, row * widest + 6));
  const chart = lane.begin.charts.find(({ kind, series }) => kind === 'trees' && series.length);
  const [low, high] = chart?.y_range ?? [0, 1];
  const ends = [];
  const values = [];
  const points = [];
  let x = 0;
  const cells = shapes.map((shape, i) => {
    const round = lane.rounds[i];
    const width = Math.max(LEAST_WIDTH, roomy, shape.wide * row + 6);
    const left = x + (width - (shape.wide - 1) * row) / 2;
    const paths = KINDS.map((kind) =>
      svg(`path.${kind}`, { d: pathOf(shape[kind], left, row, level) }),
    );
    if (chart) {
      const value = (Number(dig(round, chart.series[0].path) ?? 0) - low) / (high - low);
      const y = TREE_HEIGHT + 2 + (LINE_HEIGHT - 4) * (1 - value);
      values.push(value);
      points.push(`${(x + width / 2).toFixed(1)},${y.toFixed(1)}`);
    }
    x += width;
    ends.push(x);
    const facts = [i, countDrafted(round), countKept(round), shape.deep, shape.wide];
    return svg('g', svg('title', W.strip.round(...facts)), paths);
  });
  const height = TREE_HEIGHT + (chart ? LINE_HEIGHT : 0);
  const label = W.strip.say(lane.title, shapes);
  const props = { role: 'img', viewBox: `0 0 ${x} ${height}`, width: x, height, label };
  const picture = svg('svg', props, cells);
  return { lane, name: chart?.series[0].name ?? '', picture, cells, ends, values, points };
}

/** Edges of a tree as one path; row, level: pixels of either. */
function pathOf(edges, left, row, level) {
  const point = ([r, d]) => `${(left + r * row).toFixed(1)} ${(d * level + 3).toFixed(1)}`;
  return edges.map(([from, to]) => `M${point(from)}L${point(to)}`).join('');
}
