/* Half a page for every method: the idea, a picture, the rule that decides, what to look for, the paper. */

import { h } from './dom.js';
import { DIAGRAMS } from './diagrams.js';
import { formula } from './formula.js';
import { LESSONS } from './lessons.js';
import { tries } from './methodpanel.js';
import { W } from './words.js';

export class LearnView {
  /** tryOut(example id, method): ask an example with a method. */
  constructor(catalog, tryOut) {
    Object.assign(this, { catalog, tryOut });
    const known = catalog.methods.filter((m) => LESSONS[m.name]);
    this.node = h('div', { class: 'vl-learn' },
      h('nav', { class: 'vl-learn-nav', 'aria-label': W.learn.nav }, known.map((m) => h('a', { href: `#lesson-${m.name}`, text: m.title,
        on: { click: (e) => { e.preventDefault(); document.getElementById(`lesson-${m.name}`).scrollIntoView({ block: 'start' }); } } }))),
      h('div', { class: 'vl-lessons' }, this.colours(), known.map((m) => this.lesson(m, LESSONS[m.name]))));
  }

  /** First of all: how to read the text. */
  colours() {
    return h('article', { class: 'vl-card vl-lesson' }, h('div', {}, h('h2', { text: W.learn.first }), h('p', { text: W.learn.firstText }),
      h('ul', { class: 'vl-learn-legend' }, ['draft', 'relaxed', 'target', 'rejected'].map((o) => h('li', {}, h('span', { class: `tk ${o}`, text: W.legend[o] }), ` ${W.learn.origins[o]}`)))));
  }

  lesson(method, { idea, formula: rule, look, source }) {
    return h('article', { class: 'vl-card vl-lesson', id: `lesson-${method.name}` },
      h('div', {}, h('h2', {}, method.title, ' ', h('span', { class: `vl-badge ${method.lossless ? '' : 'lossy'}`, text: method.lossless ? W.learn.lossless : W.lane.lossy })),
        h('p', { text: idea }), rule && h('div', { class: 'vl-formula', tabindex: '0', role: 'group', 'aria-label': W.learn.formula(method.title) }, formula(...rule)), h('h3', { text: W.learn.look }), h('p', { text: look }),
        tries(this.catalog.lessons.methods[method.name], this.catalog.examples, (id) => this.tryOut(id, method.name)),
        source && h('p', { class: 'vl-help' }, h('a', { href: source[1], target: '_blank', rel: 'noopener noreferrer', text: source[0] }))),
      DIAGRAMS[method.name]());
  }
}
