/* One screen for every paper: what it does, its rule, its recorded race, as a tree that can be stepped through
   and the method's own chart, and what came of the paper's claim here. The other methods are a list. The words are the methods' own, from
   the catalog. */

import { Chart } from './chart.js';
import { declared } from './declared.js';
import { button, h, icon } from './dom.js';
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
    this.charts = [];
    const { methods } = catalog;
    const papers = catalog.papers
      .map((name) => methods.find((m) => m.name === name))
      .filter(Boolean);
    const others = methods.filter((m) => !papers.includes(m));
    this.near = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) if (isIntersecting) this.fetch(target);
    });
    this.node = h(
      'div.vl-learn',
      h(
        'nav.vl-learn-nav',
        { 'aria-label': W.learn.nav },
        papers.map((m) => button(m.title, () => this.reach(m.name), 'vl-plainbutton')),
        button(W.learn.others, () => this.reach('others'), 'vl-plainbutton'),
      ),
      h(
        'div.vl-lessons',
        this.colours(),
        papers.map((m) => this.lesson(m)),
        this.list(others),
      ),
    );
  }

  reach(name) {
    document.getElementById(`lesson-${name}`).scrollIntoView({ block: 'start' });
  }

  /** First of all: how to read the text. */
  colours() {
    return h(
      'article.vl-card.vl-lesson',
      h(
        'div',
        h('h2', W.learn.first),
        h('p', W.learn.firstText),
        h(
          'ul.vl-learn-legend',
          ['draft', 'relaxed', 'target', 'rejected'].map((o) =>
            h('li', h('span', { class: `tk ${o}`, text: W.legend[o] }), ` ${W.learn.origins[o]}`),
          ),
        ),
      ),
    );
  }

  lesson(method) {
    const { does, formula: rule, look } = method.learn;
    const example = this.catalog.examples.find((e) => e.trace && e.methods[0] === method.name);
    const live = h('div.vl-live');
    if (example) {
      live.example = example;
      this.near.observe(live);
    }
    return h(
      'article.vl-card.vl-lesson',
      { id: `lesson-${method.name}` },
      h(
        'div',
        heading(method),
        h('p', does),
        rule &&
          h(
            'div.vl-formula',
            { tabindex: '0', role: 'group', 'aria-label': W.learn.formula(method.title) },
            formula(rule[0]),
          ),
        rule && h('p.vl-help', rule[1]),
        look && h('p', h('b', `${W.learn.look} `), look),
        method.verdict && h('p', h('b', `${W.learn.verdict} `), method.verdict),
        example && this.watching(example),
        source(method),
      ),
      live,
    );
  }

  watching(example) {
    const node = button(W.learn.watch(example.title), () => this.watch(example));
    node.prepend(icon('play', 10));
    return node;
  }

  /** The example's recorded race comes when its lesson is in sight: the round that tells most, as its tree, and the method's
   *  own chart, or where there is none, what its drafter saw of the pictures. */
  async fetch(node) {
    this.near.unobserve(node);
    const race = new Race();
    const tree = new TreeView(race, this.painter);
    try {
      for (const record of await trace.fetched(node.example.trace)) race.take(record);
    } catch {
      return; // the words stand without it
    }
    const lane = race.focused;
    const [own] = lane.begin.charts;
    const chart = own && new Chart(declared(own), race, this.painter, this.plotlyUrl);
    const looks = h('div');
    node.append(tree.node, chart?.node ?? looks);
    if (chart) this.charts.push(chart);
    else
      race.on('select', () => {
        const at = lane.tokens[race.selected?.token]?.at ?? 0;
        looks.replaceChildren(sight(race, lane, race.currentRound, at) ?? '');
      });
    race.select({ lane: lane.name, token: instructive(lane) ?? 0 });
  }

  /** Read the colours again after a change of theme. */
  repaint() {
    for (const chart of this.charts) chart.repaint();
  }

  list(methods) {
    return h(
      'article.vl-card.vl-lesson',
      { id: 'lesson-others' },
      h(
        'div',
        h('h2', W.learn.others),
        h(
          'dl.vl-other-methods',
          methods.flatMap((m) => [
            h('dt', m.title, !m.lossless && h('small', W.learn.lossyMark)),
            h('dd', m.help, ' ', source(m)),
          ]),
        ),
      ),
    );
  }
}

function heading({ title, lossless }) {
  const text = lossless ? W.learn.lossless : W.lane.lossy;
  return h('h2', title, ' ', h('span', { class: `vl-badge ${lossless ? '' : 'lossy'}`, text }));
}

/** The paper as a link. */
function source({ url, reference }) {
  const text = reference || url;
  const more = { target: '_blank', rel: 'noopener noreferrer' };
  return url ? h('a.vl-help', { href: url, text, ...more }) : null;
}
