/* The trees of all rounds of the lane in focus, small and side by side, what was kept coloured; beneath, a number of
   its method's own. A click opens the round. */

import { term } from './explain.js';
import { h, put, svg } from './dom.js';
import { countDrafted, countKept, dig } from '../records/fold.js';
import { shapeOf } from '../records/shapes.js';
import { W } from '../words/words.js';

const HIGH = 52; // of the trees
const BELOW = 22; // of the line beneath them
const LEVEL = 9; // height of a level at most
const ROW = 8; // between two leaves at most
const LEAST = 10; // width of a round
const ROOMY = 44; // where there is room
const COLOURS = { idle: 'strong', kept: 'draft', relaxed: 'relaxed' };

/** Edges of a tree as one path; row, level: pixels of either. */
function pathOf(edges, x, row, level) {
  const svgPoint = ([r, d]) => `${(x + r * row).toFixed(1)} ${(d * level + 3).toFixed(1)}`;
  return edges.map(([from, to]) => `M${svgPoint(from)}L${svgPoint(to)}`).join('');
}

export class Strip {
  /** @param {Race} race @param {Painter} painter */
  constructor(race, painter) {
    this.race = race;
    this.svg = svg('svg', { role: 'img', 'aria-label': W.strip.title });
    this.line = svg('polyline', { style: { fill: 'none', stroke: 'var(--vl-series-0)' } });
    this.now = svg('rect', { height: HIGH + BELOW, rx: 3, style: { fill: 'var(--vl-sunk)' } });
    this.told = h('span.vl-facts');
    const title = h('h3', term(W.strip.title, W.strip.help));
    this.box = h('div.vl-tree-box', { click: (e) => this.click(e) }, this.svg);
    this.node = h('div.vl-strip', h('header', title, this.told), this.box);
    race.on('reset round head end begin', () => painter.affordably(this.draw));
    race.on('select focus', () => painter.now(this.draw));
    new ResizeObserver(() => painter.now(this.draw)).observe(this.box);
  }

  /** Open the round that was clicked. */
  click({ clientX }) {
    const { left, width } = this.svg.getBoundingClientRect();
    const x = (clientX - left) / width;
    const round = this.ends.findIndex((end) => x < end / this.ends.at(-1));
    if (round >= 0) this.race.pick(this.lane, { round });
  }

  /** Show the rounds that are shown by now, and mark the current one. */
  draw = () => {
    const { race } = this;
    const lane = race.focused;
    const shown = lane ? race.roundsShown(lane) : 0;
    this.node.hidden = !lane?.rounds.some(countDrafted);
    if (this.node.hidden || !this.box.clientWidth) return;
    const key = [lane.name, lane.rounds.length, this.box.clientWidth, lane.begin.request].join();
    if (key !== this.key) this.layOut(lane);
    this.key = key;
    this.cells.forEach((cell, i) => {
      cell.style.display = i < shown ? '' : 'none';
    });
    const { chart, points, middles } = this;
    const value = points[Math.min(shown, race.currentRound?.index + 1 || 0) - 1];
    put(this.told, chart ? `${chart.series[0].name} ${value?.toFixed(2) ?? ''}` : '');
    const at = (v, i) =>
      `${middles[i].toFixed(1)},${(HIGH + 2 + (BELOW - 4) * (1 - v)).toFixed(1)}`;
    this.line.setAttribute('points', chart ? points.slice(0, shown).map(at).join(' ') : '');
    const current = Math.min(race.currentRound?.index ?? 0, shown - 1);
    const left = this.ends[current - 1] ?? 0;
    this.now.setAttribute('x', left);
    this.now.setAttribute('width', Math.max(0, (this.ends[current] ?? left) - left));
    if (this.box.scrollWidth > this.box.clientWidth)
      this.box.scrollLeft = left - this.box.clientWidth / 2;
  };

  /** Place all rounds that are known: as wide as there is room. */
  layOut(lane) {
    this.lane = lane;
    this.chart = lane.begin.charts.find(({ kind }) => kind === 'trees');
    const shapes = lane.rounds.map(shapeOf);
    const level = Math.min(LEVEL, (HIGH - 8) / Math.max(1, ...shapes.map(({ deep }) => deep)));
    const wide = Math.max(...shapes.map((shape) => shape.wide));
    const room = this.box.clientWidth / shapes.length;
    const row = Math.min(ROW, Math.max(2, (Math.max(room, LEAST) - 6) / wide));
    this.ends = [];
    this.middles = [];
    let x = 0;
    this.cells = shapes.map((shape, i) => {
      const roomy = Math.min(room, Math.max(ROOMY, row * wide + 6));
      const width = Math.max(LEAST, roomy, shape.wide * row + 6);
      const first = x + (width - (shape.wide - 1) * row) / 2;
      const cell = Object.entries(COLOURS).map(([kind, colour]) => {
        const style = { stroke: `var(--vl-${colour})`, 'stroke-width': kind === 'idle' ? 1 : 2.2 };
        return svg('path', { d: pathOf(shape[kind], first, row, level), style });
      });
      this.middles.push(x + width / 2);
      this.ends.push((x += width));
      const round = lane.rounds[i];
      const facts = [i, countDrafted(round), countKept(round), shape.deep, shape.wide];
      return svg('g', svg('title', { text: W.strip.round(...facts) }), cell);
    });
    const [low, high] = this.chart?.y_range ?? [0, 1];
    const { path } = this.chart?.series[0] ?? { path: '' };
    this.points = lane.rounds.map((r) => (Number(dig(r, path) ?? 0) - low) / (high - low));
    const tall = HIGH + (this.chart ? BELOW : 0);
    this.svg.replaceChildren(this.now, ...this.cells, this.line);
    this.svg.setAttribute('viewBox', `0 0 ${x} ${tall}`);
    this.svg.setAttribute('width', x);
    this.svg.setAttribute('height', tall);
    this.svg.setAttribute('aria-label', W.strip.say(lane.title, shapes));
  }
}
