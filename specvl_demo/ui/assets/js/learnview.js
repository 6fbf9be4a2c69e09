/* Half a page for every method: what it does, a picture, its rule, where it is fast and where not,
   what to look for, the paper. The words are the method's own, from the catalog. */

import { h } from './dom.js';
import { DIAGRAMS } from './diagrams.js';
import { formula } from './formula.js';
import { tries } from './methodpanel.js';
import { W } from './words.js';

export class LearnView {
  /** tryOut(example id, method): ask an example with a method. ways: the buttons of the story and the game. */
  constructor(catalog, tryOut, ways) {
    Object.assign(this, { catalog, tryOut });
    const known = catalog.methods.filter((m) => m.learn);
    this.node = h(
      'div.vl-learn',
      h(
        'nav.vl-learn-nav',
        { 'aria-label': W.learn.nav },
        known.map((m) =>
          h('a', {
            href: `#lesson-${m.name}`,
            text: m.title,
            on: {
              click: (e) => {
                e.preventDefault();
                document.getElementById(`lesson-${m.name}`).scrollIntoView({ block: 'start' });
              },
            },
          }),
        ),
      ),
      h(
        'div.vl-lessons',
        h(
          'article.vl-card.vl-play',
          h('h2', W.learn.play),
          h(
            'ul',
            ways.map((way, i) => h('li', way, W.learn.ways[i])),
          ),
        ),
        this.colours(),
        known.map((m) => this.lesson(m)),
      ),
    );
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
        h('p.vl-symbols', W.learn.symbols),
      ),
    );
  }

  lesson(method) {
    const { does, formula: rule, shines, struggles, look, url } = method.learn;
    return h(
      'article.vl-card.vl-lesson',
      { id: `lesson-${method.name}` },
      h(
        'div',
        h(
          'h2',
          method.title,
          ' ',
          h('span', {
            class: `vl-badge ${method.lossless ? '' : 'lossy'}`,
            text: method.lossless ? W.learn.lossless : W.lane.lossy,
          }),
        ),
        h('p', does),
        rule &&
          h(
            'div.vl-formula',
            { tabindex: '0', role: 'group', 'aria-label': W.learn.formula(method.title) },
            formula(...rule),
          ),
        shines && h('p', h('b', `${W.learn.shines} `), shines),
        struggles && h('p', h('b', `${W.learn.struggles} `), struggles),
        look && [h('h3', W.learn.look), h('p', look)],
        method.drafts && h('p', h('b', `${W.learn.drafts} `), method.drafts),
        method.verdict && h('p', h('b', `${W.learn.verdict} `), method.verdict),
        tries(this.catalog.lessons.methods[method.name], this.catalog.examples, (id) =>
          this.tryOut(id, method.name),
        ),
        url &&
          h(
            'p.vl-help',
            h('a', {
              href: url,
              target: '_blank',
              rel: 'noopener noreferrer',
              text: method.reference || url,
            }),
          ),
      ),
      DIAGRAMS[method.name]?.(),
    );
  }
}
