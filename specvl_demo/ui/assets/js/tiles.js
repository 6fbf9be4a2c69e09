/* The examples as tiles: the first of their pictures, or the beginning of their clip, and a title. */

import { h, roving } from './dom.js';
import { W } from './words.js';

/** What an example shows, small. */
export function thumbnails({ thumbs, media }) {
  if (thumbs.length) return thumbs.map((src) => h('img', { src, alt: '', loading: 'lazy' }));
  return media.map(({ url }) =>
    h('video', { src: url, muted: true, playsinline: true, preload: 'metadata' }),
  );
}

export class Tiles {
  /** onpick(example): one was pressed. */
  constructor(catalog, onpick) {
    Object.assign(this, { catalog, onpick });
    this.node = roving(
      h('div', { class: 'vl-examples', role: 'toolbar', 'aria-label': W.ask.examples }),
    );
  }

  /** The examples of the chosen pair; all of them where it has none of its own. */
  show(pair) {
    const { examples } = this.catalog;
    const own = examples.filter((e) => e.pair === pair.id);
    const shown = own.length ? own : examples;
    const ids = shown.map((e) => e.id).join();
    if (this.node.dataset.ids === ids) return;
    this.node.dataset.ids = ids;
    this.node.dataset.many = String(shown.length > 6);
    this.node.replaceChildren(...shown.map((example) => this.tile(example)));
    this.node.settle();
  }

  tile(example) {
    return h(
      'button',
      {
        type: 'button',
        class: 'vl-tile',
        title: example.why,
        'aria-label': example.title,
        data: { example: example.id },
        on: { click: () => this.onpick(example) },
      },
      h('span', { class: 'vl-tile-media' }, thumbnails(example).slice(0, 2)),
      h('span', { text: example.title }),
    );
  }
}
