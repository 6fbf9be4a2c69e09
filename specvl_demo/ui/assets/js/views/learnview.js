/* A lesson for every paper, in the methods' own words, and a list of the other methods. */

import { Chart } from './chart.js';
import { declared } from './declared.js';
import { button, folded, h, mathml, refill, scrolls } from './dom.js';
import { instructive } from '../records/highlights.js';
import { sight } from './patches.js';
import { Race } from '../state/race.js';
import * as trace from '../records/trace.js';
import { TreeView } from './tree.js';
import { W } from '../words/words.js';

/** watch(example): show the recorded race of an example. */
export function learnView({ about, examples, methods, papers: names }, painter, watch) {
  const [first, ...last] = about;
  const papers = names.flatMap((name) => methods.find((m) => m.name === name) ?? []);
  const others = methods.filter((m) => !papers.includes(m));
  const live = (example, charted) => {
    const box = h('div.vl-live');
    if (example) {
      painter.register(box, () => drawExample(box, example, painter, charted));
      painter.dirty(box);
    }
    return box;
  };
  const lesson = (method) => {
    const example = examples.find((e) => e.methods[0] === method.name);
    const show = example && button(W.learn.watch(example.title), () => watch(example));
    return lessonCard(method.name, lessonWords(method, show), live(example, true));
  };
  const reach = ({ name, title }) => {
    const go = () => document.getElementById(`lesson-${name}`).scrollIntoView({ block: 'start' });
    return button(title, go, 'vl-plainbutton');
  };
  const [begin, end] = ['first', 'others'].map((name) => ({ name, title: W.learn[name] }));
  const places = [begin, ...papers, end];
  const nav = h('nav.vl-learn-nav', { label: W.learn.nav }, places.map(reach));
  const plain = examples.find(({ id }) => id === 'tree') ?? examples[0];
  const reading = aboutColours(first, live(plain, false));
  const lessons = [reading, ...papers.map(lesson), aboutOthers(others)];
  const notes = last.map((text) => h('p.vl-help', text)); // how to cite and to call it
  return h('div.vl-learn', nav, h('div.vl-lessons', lessons, notes));
}

function lessonWords(method, show) {
  const { does, formula: rule, look } = method.learn;
  return [
    heading(method),
    h('p', does),
    rule && h('div.vl-formula', scrolls(W.learn.formula(method.title)), formula(rule[0])),
    rule && h('p.vl-help', rule[1]),
    look && h('p', h('b', `${W.learn.look} `), look),
    method.verdict && folded('details', W.learn.verdict, h('p', method.verdict)),
    show,
    sourceLink(method),
  ];
}

async function drawExample(node, example, painter, charted) {
  painter.forget(node);
  const race = new Race();
  const tree = new TreeView(race, painter);
  try {
    race.show(await trace.fetched(example.trace));
  } catch {
    return; // the words stand without it
  }
  const lane = race.focused;
  const [own] = lane.begin.charts;
  const chart = charted && own && new Chart(declared(own), race, painter);
  const looks = h('div');
  node.append(tree.node, chart ? chart.node : looks);
  if (charted && !chart)
    race.on('select', () => {
      const at = lane.tokens[race.selected?.token]?.at ?? 0;
      refill(looks, [sight(race, lane, race.currentRound, at)]);
    });
  race.select({ lane: lane.name, token: instructive(lane) ?? 0 });
}

const lessonCard = (name, words, live) =>
  h('article.vl-card.vl-lesson', { id: `lesson-${name}` }, h('div', words), live);

function aboutColours(text, live) {
  const line = (o) => h('li', h(`span.tk.${o}`, W.legend[o]), ` ${W.learn.origins[o]}`);
  const legend = h('ul.vl-learn-legend', ['draft', 'relaxed', 'target', 'rejected'].map(line));
  const tree = [h('h3', W.tree.title), h('p', W.tree.help)];
  return lessonCard('first', [h('h2', W.learn.first), h('p', text), legend, ...tree], live);
}

function aboutOthers(methods) {
  const told = methods.flatMap((m) => [
    h('dt', m.title, !m.lossless && h('small', ` (${W.lane.lossy})`)),
    h('dd', m.help, ' ', sourceLink(m)),
  ]);
  return lessonCard('others', [h('h2', W.learn.others), h('dl.vl-other-methods', told)]);
}

function heading({ title, lossless }) {
  const text = lossless ? W.lane.exact : W.lane.lossy;
  return h('h2', title, ' ', h(lossless ? 'span.vl-badge' : 'span.vl-badge.lossy', text));
}

const sourceLink = ({ url: href, reference }) =>
  href && h('a.vl-help', { href, target: '_blank', rel: 'noopener noreferrer' }, reference || href);

/** Formulas are nested lists: ['sub', a, b], ['sup', a, b], ['frac', a, b], ['sum', below, above]; others are rows. */
const TAGS = { sub: 'msub', sup: 'msup', frac: 'mfrac' };

function tagOf(symbol) {
  if (/^[\d.]+$/.test(symbol)) return 'mn';
  return /^[\p{L}̃̂]+$/u.test(symbol) ? 'mi' : 'mo';
}

function mathOf(expression) {
  if (typeof expression === 'string')
    return mathml(tagOf(expression), { stretchy: 'false' }, expression);
  const [head, ...rest] = expression;
  if (head in TAGS) return mathml(TAGS[head], rest.map(mathOf));
  if (head === 'sum') return mathml('munderover', mathml('mo', '∑'), rest.map(mathOf));
  if (head === 'text') return mathml('mtext', rest[0].replaceAll(' ', '\u00a0')); // else it is trimmed
  return mathml('mrow', expression.map(mathOf));
}

const formula = (expression) => mathml('math', { displaystyle: 'true' }, mathOf(expression));
