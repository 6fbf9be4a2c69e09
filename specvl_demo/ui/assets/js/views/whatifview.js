/* The race simulated with a better drafter, a longer draft, another cost, and the formula. */

import { Chart } from './chart.js';
import { lineAtOne, scatter } from './charts.js';
import { button, folded, h, put, refill, slider, term } from './dom.js';
import { breakEven, learn, payOff, simulate } from '../records/simulate.js';
import { doubt, hedged } from '../records/verdict.js';
import { WHATIF } from '../words/whatifwords.js';
import { W, fmt } from '../words/words.js';

const LONGEST = 20; // draft

export function whatIf(race, painter) {
  const shown = { known: null, values: null }; // what the lane tells, and what the sliders say
  const sliders = h('div.vl-card.vl-sliders');
  const reset = button(WHATIF.reset, () => load());
  const why = h('div.vl-help');
  const curve = new Chart(curveOf(shown), race, painter);
  const { says, parts, formula, draw } = outcomeOf(race, shown);
  const change = () => {
    painter.soon(() => node.open && draw());
    curve.update(true);
  };
  const load = () => {
    const lane = race.focused;
    const over = lane && race.ended;
    const known = over && lane !== race.baseline ? learn(lane, race.baseline) : null;
    shown.known = known;
    node.hidden = !known;
    if (!known || !node.open) return;
    const { quality, gamma, draft, row, requests } = known;
    shown.values = { quality, gamma, draft, row, requests };
    const costs = doubt(race, lane) ? null : payOff(lane, race.baseline.totalsAfter(Infinity));
    const all = costs && { ...costs, gamma, even: breakEven(known) };
    refill(why, all ? WHATIF.costs(all).map((text) => h('p', text)) : []);
    const bounds = {
      quality: [0, 1, 0.01],
      gamma: [1, LONGEST, 1],
      draft: [0, Math.max(0.5, 3 * draft), 0.005],
      row: [0, Math.max(0.2, 3 * row), 0.002],
      requests: [1, 64, 1],
    };
    const made = Object.keys(bounds).map((key) => valueSlider(shown, key, bounds[key], change));
    sliders.replaceChildren(...made, reset);
    change();
  };
  const card = (...some) => h('section.vl-card.vl-whatif-race', ...some);
  const cards = h('div.vl-stack', card(parts), card(formula, why), curve.node);
  const node = folded(
    'details.vl-card.vl-whatif',
    WHATIF.title,
    { hidden: true, toggle: load },
    h('p.vl-help', WHATIF.help),
    says,
    h('div.vl-whatif-body', sliders, cards),
  );
  race.on('reset begin lane end focus compared', () => painter.affordably(load));
  return node;
}

function valueSlider({ known, values }, key, [min, max, step], onchange) {
  const steps = (x) => WHATIF.steps(x.toFixed(3));
  const write = { quality: fmt.percent, draft: steps, row: steps }[key] ?? String;
  const out = h('output', write(values[key]));
  const set = (value) => {
    values[key] = value;
    input.ariaValueText = write(value);
    put(out, write(value));
    onchange();
  };
  const [title, help] = WHATIF.sliders[key];
  const input = slider(title, max, set, { min, step, id: `vl-w-${key}` });
  input.value = values[key];
  const was = h('small.vl-help', WHATIF.was(write(known[key])));
  return h('div.vl-slider', term(title, help), out, input, was);
}

/** What comes of the values: its elements, and what draws them. */
function outcomeOf(race, shown) {
  const [ar, before, after] = ['ar', 'recorded', 'simulated'].map(makeBar);
  const says = h('p.vl-whatif-says', { 'aria-live': 'polite' });
  const formula = h('p.vl-whatif-formula');
  const rounds = h('div.vl-rounds-strip', { role: 'img' });
  const draw = () => {
    const { known, values } = shown;
    if (!known) return;
    const made = simulate(known, values);
    const { recorded } = known;
    const { colour, title } = race.focused;
    const doubted = doubt(race, race.focused);
    const rough = hedged(doubted);
    const was = doubted ? rough : recorded.speedup;
    const told = rough ? W.track.about(rough) : fmt.times(was);
    const fastest = Math.max(1, was, made.speedup);
    ar.draw(0, WHATIF.ar, 1 / fastest, fmt.times(1));
    before.draw(colour, WHATIF.recorded(title), was / fastest, told);
    after.draw(colour, WHATIF.simulated, made.speedup / fastest, fmt.times(made.speedup));
    const same = Object.keys(values).every((key) => values[key] === known[key]);
    const [s, r] = [made, recorded].map((one) => one.speedup.toFixed(2));
    const unsure = doubted && WHATIF.unsure(s, W.charts.noSpeedup(doubted), same);
    const beyond = values.gamma > known.deepest && WHATIF.beyond(known.deepest);
    const sentences = [unsure || WHATIF[same ? 'same' : 'other'](s, r), beyond];
    put(says, sentences.filter(Boolean).join(' '));
    const [v, c] = [made.verify, values.draft].map((x) => x.toFixed(3));
    put(formula, WHATIF.formula({ tau: made.tau.toFixed(2), v, gamma: values.gamma, c, s }));
    drawRounds(rounds, (same ? recorded : made).rounds);
  };
  return { says, parts: [ar.node, before.node, after.node, rounds], formula, draw };
}

function makeBar(name) {
  const [fill, label, value] = [h('i', { class: name }), h('span'), h('b')];
  const node = h('div.vl-whatif-bar', label, h('div.vl-bar', fill), value);
  const draw = (colour, title, length, speed) => {
    node.dataset.colour = colour;
    put(label, title);
    put(value, speed);
    fill.style.transform = `scaleX(${length})`;
  };
  return { node, draw };
}

function drawRounds(node, rounds) {
  const wide = (n) => ({ style: { 'flex-grow': n } });
  const block = ({ kept }) =>
    h('span', wide(kept + 1), kept > 0 && h('i.draft', wide(kept)), h('i.target', wide(1)));
  refill(node, rounds.map(block));
  node.ariaLabel = WHATIF.roundsSay(rounds.length);
}

/** Speedup by draft length, with the sliders' other values. @returns {ChartSpec} */
const curveOf = (shown) => ({
  id: 'what-if',
  title: WHATIF.curve,
  help: '',
  x: WHATIF.length,
  y: W.charts.times,
  whole: true,
  build(race, colours) {
    const { known, values } = shown;
    if (!known || !values) return null; // the box is sized before it is loaded
    const lengths = Array.from({ length: LONGEST }, (_, i) => i + 1);
    const speeds = lengths.map((gamma) => simulate(known, { ...values, gamma }).speedup);
    const { gamma } = values;
    const { deepest } = known;
    const line = (dash, ...part) =>
      scatter(lengths.slice(...part), speeds.slice(...part), {
        line: { color: colours.draft, dash },
      });
    const now = speeds[gamma - 1];
    const marker = { color: colours.draft, size: 12 };
    return {
      traces: [
        line('solid', 0, deepest),
        line('dot', deepest - 1),
        scatter([gamma], [now], { mode: 'markers', marker }),
      ],
      shapes: [lineAtOne(colours)],
      note: deepest < LONGEST && WHATIF.beyond(deepest),
      xend: LONGEST + 1,
      ymax: 1.08 * Math.max(1.2, ...speeds),
      say: WHATIF.curveSay(gamma, now.toFixed(2)),
    };
  },
});
