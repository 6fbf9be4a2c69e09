/* A lesson for every paper, in the methods' own words, and a list of the other methods. */

import { Chart } from './chart.js';
import { declared } from './declared.js';
import { button, folded, h, refill, scrolls } from './dom.js';
import { formula } from './formula.js';
import { instructive } from '../records/highlights.js';
import { sight } from './patches.js';
import { Race } from '../state/race.js';
import * as trace from '../records/trace.js';
import { TreeView } from './tree.js';
import { W } from '../words/words.js';

export class LearnView {
  /** watch(example): show the recorded race of an example. */
  constructor(catalog, painter, plotlyUrl, watch) {
    this.catalog = catalog;
    this.painter = painter;
    this.plotlyUrl = plotlyUrl;
    this.watch = watch;
    const { methods } = catalog;
    const papers = catalog.papers.flatMap((name) => methods.find((m) => m.name === name) ?? []);
    const others = methods.filter((m) => !papers.includes(m));
    this.near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) this.drawExample(target);
    });
    const reach = ({ name, title }) => {
      const go = () => document.getElementById(`lesson-${name}`).scrollIntoView({ block: 'start' });
      return button(title, go, 'vl-plainbutton');
    };
    const places = [...papers, { name: 'others', title: W.learn.others }];
    const nav = h('nav.vl-learn-nav', { label: W.learn.nav }, places.map(reach));
    const lessons = [aboutColours(), ...papers.map((m) => this.lesson(m)), aboutOthers(others)];
    this.node = h('div.vl-learn', nav, h('div.vl-lessons', lessons));
  }

  lesson(method) {
    const { does, formula: rule, look } = method.learn;
    const example = this.catalog.examples.find((e) => e.trace && e.methods[0] === method.name);
    const live = h('div.vl-live');
    if (example) {
      live.example = example;
      this.near.observe(live);
    }
    const words = [
      heading(method),
      h('p', does),
      rule && h('div.vl-formula', scrolls(W.learn.formula(method.title)), formula(rule[0])),
      rule && h('p.vl-help', rule[1]),
      look && h('p', h('b', `${W.learn.look} `), look),
      method.verdict && folded('details', W.learn.verdict, h('p', method.verdict)),
      example && button(W.learn.watch(example.title), () => this.watch(example)),
      sourceLink(method),
    ];
    return lessonCard(method.name, words, live);
  }

  /** The most instructive round's tree, and the method's own chart or what its drafter saw. */
  async drawExample(node) {
    this.near.unobserve(node);
    const race = new Race();
    const tree = new TreeView(race, this.painter);
    try {
      race.show(await trace.fetched(node.example.trace));
    } catch {
      return; // the words stand without it
    }
    const lane = race.focused;
    const [own] = lane.begin.charts;
    const chart = own && new Chart(declared(own), race, this.painter, this.plotlyUrl);
    const looks = h('div');
    node.append(tree.node, chart?.node ?? looks);
    if (!chart)
      race.on('select', () => {
        const at = lane.tokens[race.selected?.token]?.at ?? 0;
        refill(looks, [sight(race, lane, race.currentRound, at)]);
      });
    race.select({ lane: lane.name, token: instructive(lane) ?? 0 });
  }
}

const lessonCard = (name, words, live) =>
  h('article.vl-card.vl-lesson', { id: `lesson-${name}` }, h('div', words), live);

function aboutColours() {
  const line = (o) => h('li', h(`span.tk.${o}`, W.legend[o]), ` ${W.learn.origins[o]}`);
  const legend = h('ul.vl-learn-legend', ['draft', 'relaxed', 'target', 'rejected'].map(line));
  return lessonCard('first', [h('h2', W.learn.first), h('p', W.learn.firstText), legend]);
}

function aboutOthers(methods) {
  const told = methods.flatMap((m) => [
    h('dt', m.title, !m.lossless && h('small', W.learn.lossyMark)),
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
