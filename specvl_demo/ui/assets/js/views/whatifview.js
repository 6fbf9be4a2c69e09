/* The race simulated with a better drafter, a longer draft, another cost, and the formula. */

import { button, folded, h, put, refill, slider, svg, term } from './dom.js';
import { breakEven, learn, payOff, simulate } from '../records/simulate.js';
import { doubt, hedged } from '../records/verdict.js';
import { WHATIF } from '../words/whatifwords.js';
import { W, fmt } from '../words/words.js';

const LONGEST = 20; // draft
const BOX = { left: 60, top: 14, bottom: 150 }; // of a curve
const RATE_MS = 45; // a step of the autoregressive lane, on screen

export class WhatIf {
  constructor(race, painter) {
    this.race = race;
    this.painter = painter;
    this.sliders = h('div.vl-card.vl-sliders');
    this.bars = ['ar', 'recorded', 'simulated'].map((name) => this.bar(name));
    this.again = button(WHATIF.play, () => this.play(), 'vl-secondary');
    this.reset = button(WHATIF.reset, () => this.load());
    this.says = h('p.vl-whatif-says', { 'aria-live': 'polite' });
    this.formula = h('p.vl-whatif-formula');
    this.why = h('div.vl-help');
    this.curve = svg('svg.vl-curve', { role: 'img' });
    new ResizeObserver(() => painter.soon(this.draw)).observe(this.curve);
    this.rounds = h('div.vl-rounds-strip', { role: 'img' });
    const card = (...parts) => h('section.vl-card.vl-whatif-race', ...parts);
    const bars = [...this.bars.map(({ node }) => node), h('div.vl-buttons', this.again)];
    const raced = card(this.says, bars, this.rounds);
    const cards = h('div.vl-stack', raced, card(this.formula, this.curve, this.why));
    this.node = folded(
      'details.vl-card.vl-whatif',
      WHATIF.title,
      { hidden: true, toggle: this.load },
      h('p.vl-help', WHATIF.help),
      h('div.vl-whatif-body', this.sliders, cards),
    );
    race.on('reset begin lane end focus compared', () => painter.affordably(this.load));
  }

  bar(name) {
    const [fill, label, value] = [h('i', { class: name }), h('span'), h('b')];
    const node = h('div.vl-whatif-bar', label, h('div.vl-bar', fill), value);
    return { name, fill, label, value, node };
  }

  /** The lane in focus: its recorded figures are the sliders' first positions. */
  load = () => {
    const { race } = this;
    const lane = race.focused;
    const over = lane && race.ended;
    const known = over && lane !== race.baseline ? learn(lane, race.baseline) : null;
    this.known = known;
    this.node.hidden = !known;
    if (!known || !this.node.open) return;
    const { quality, gamma, draft, row, requests } = known;
    this.values = { quality, gamma, draft, row, requests };
    const costs = doubt(race, lane) ? null : payOff(lane, race.baseline.totalsAfter(Infinity));
    const all = costs && { ...costs, gamma, even: breakEven(known) };
    refill(this.why, all ? WHATIF.costs(all, fmt.percent).map((text) => h('p', text)) : []);
    const bounds = {
      quality: [0, 1, 0.01],
      gamma: [1, LONGEST, 1],
      draft: [0, Math.max(0.5, 3 * draft), 0.005],
      row: [0, Math.max(0.2, 3 * row), 0.002],
      requests: [1, 64, 1],
    };
    const sliders = Object.entries(bounds).map(([key, range]) => this.valueSlider(key, range));
    this.sliders.replaceChildren(...sliders, this.reset);
    this.shown = Infinity;
    this.draw();
  };

  valueSlider(key, bounds) {
    const [min, max, step] = bounds;
    const steps = (x) => WHATIF.steps(x.toFixed(3));
    const write = { quality: fmt.percent, draft: steps, row: steps }[key] ?? String;
    const out = h('output', write(this.values[key]));
    const set = (value) => {
      this.values[key] = value;
      const told = write(value);
      input.ariaValueText = told;
      put(out, told);
      this.shown = Infinity;
      this.painter.soon(this.draw);
    };
    const [title, help] = WHATIF.sliders[key];
    const input = slider(title, max, set, { min, step, id: `vl-w-${key}` });
    input.value = this.values[key];
    const was = h('small.vl-help', WHATIF.was(write(this.known[key])));
    return h('div.vl-slider', term(title, help), out, input, was);
  }

  /** The bars race, each at its own pace. */
  play() {
    this.begun = performance.now();
    this.shown = 0;
    requestAnimationFrame(this.tick);
  }

  tick = (now) => {
    if (!this.known || !this.node.open || this.shown === Infinity) return;
    this.shown = (now - this.begun) / RATE_MS;
    if (this.shown > this.known.n) this.shown = Infinity;
    this.draw();
    if (this.shown !== Infinity) requestAnimationFrame(this.tick);
  };

  draw = () => {
    const { known, values, bars } = this;
    if (!known || !values || !this.node.open) return; // the box is sized before it is loaded
    const made = simulate(known, values);
    const { recorded, n } = known;
    const { focused } = this.race;
    const doubted = doubt(this.race, focused);
    const rough = hedged(doubted);
    const was = doubted ? rough : recorded.speedup;
    const told = {
      ar: [WHATIF.ar, 1],
      recorded: [WHATIF.recorded(focused.title), was],
      simulated: [WHATIF.simulated, made.speedup],
    };
    const fastest = Math.max(1, was, made.speedup);
    for (const { name, node, fill, label, value } of bars) {
      node.dataset.colour = name === 'ar' ? 0 : focused.colour;
      const [title, speed] = told[name];
      put(label, title);
      const hedge = name === 'recorded' && rough;
      put(value, hedge ? W.track.about(rough.toFixed(1)) : fmt.times(speed));
      // Standing: lengths are speeds. Moving: lengths are tokens written so far.
      const moving = Math.min(1, (this.shown * speed) / n);
      fill.style.transform = `scaleX(${this.shown === Infinity ? speed / fastest : moving})`;
    }
    const same = Object.keys(values).every((key) => values[key] === known[key]);
    const [s, r] = [made, recorded].map((one) => one.speedup.toFixed(2));
    const unsure = doubted && WHATIF.unsure(s, W.charts.noSpeedup(doubted), same);
    put(this.says, unsure || WHATIF[same ? 'same' : 'other'](s, r));
    const [v, c] = [made.verify, values.draft].map((x) => x.toFixed(3));
    put(this.formula, WHATIF.formula({ tau: made.tau.toFixed(2), v, gamma: values.gamma, c, s }));
    drawRounds(this.rounds, (same ? recorded : made).rounds);
    this.drawCurve(made);
  };

  drawCurve({ speedup }) {
    const { curve, known, values } = this;
    const at = (gamma) => simulate(known, { ...values, gamma }).speedup;
    const points = Array.from({ length: LONGEST }, (_, i) => at(i + 1));
    refill(curve, partsOf(points, [values.gamma, speedup], curve.clientWidth));
    curve.ariaLabel = WHATIF.curveSay(values.gamma, speedup.toFixed(2));
  }
}

/** As blocks: guessed tokens green, the target's own blue. */
function drawRounds(node, rounds) {
  const wide = (n) => ({ style: { 'flex-grow': n } });
  const block = ({ kept }) =>
    h('span', wide(kept + 1), kept > 0 && h('i.draft', wide(kept)), h('i.target', wide(1)));
  refill(node, rounds.map(block));
  node.ariaLabel = WHATIF.roundsSay(rounds.length);
}

/** From 0 to `most`, five of them at most. */
function ticks(most) {
  const every = Math.ceil(most / 5);
  return Array.from({ length: Math.floor(most / every) + 1 }, (_, i) => i * every);
}

/** Of the curve. points: speedups of draft lengths from 1. */
function partsOf(points, [gamma, now], width) {
  const { left, top, bottom } = BOX;
  const right = width - 14;
  const most = Math.max(1.2, ...points) * 1.08;
  const x = (length) => left + ((length - 1) / (LONGEST - 1)) * (right - left);
  const y = (speedup) => bottom - (speedup / most) * (bottom - top);
  const text = (at, up, words, more = {}) =>
    svg('text', { x: at, y: up, 'text-anchor': 'middle', text: words, ...more });
  const line = points.map((s, i) => `${i ? 'L' : 'M'}${x(i + 1).toFixed(1)} ${y(s).toFixed(1)}`);
  return [
    svg('line.one', { x1: left, x2: right, y1: y(1), y2: y(1) }),
    ...ticks(most).map((s) => text(left - 6, y(s) + 4, `${s}×`, { 'text-anchor': 'end' })),
    text(-(top + bottom) / 2, 14, WHATIF.axis, { transform: 'rotate(-90)' }),
    svg('path', { d: line.join('') }),
    svg('circle.now', { cx: x(gamma), cy: y(now), r: 6 }),
    ...[1, 5, 10, 15, LONGEST].map((length) => text(x(length), bottom + 20, length)),
    text((left + right) / 2, bottom + 43, WHATIF.curve),
  ];
}
