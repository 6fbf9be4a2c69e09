/* The examples as tiles: one for each paper and one that fails in sight, the others one press away. */

import { folded, h } from './dom.js';
import { W, fmt } from '../words/words.js';

const FRAMES = 4;
const FIRST = 6;

/** An example's pictures and clips. */
function thumbnails({ media }) {
  return media.map(({ url: src, kind }) =>
    kind === 'video'
      ? h('video', { src, muted: true, playsinline: true, preload: 'metadata' })
      : h('img', { src, alt: '', loading: 'lazy' }),
  );
}

/** What a race was shown: its pictures, of a clip the first frames. */
export function stills(shown = []) {
  /** The first frames that there are. */
  const first = (frames) => frames.filter(Boolean).slice(0, FRAMES);
  return shown.flatMap(({ name: alt, frames }) =>
    first(frames).map((src) => h('img', { src, alt })),
  );
}

/** Examples as they are offered: the first of every paper, the first that fails, the others; first those of the
 *  page's own pair. */
export function offered({ examples, papers, pairs }) {
  /** The first example that fits, of the page's own pair if one does. */
  const first = (fits) =>
    examples.find((e) => fits(e) && e.pair === pairs[0].id) ?? examples.find(fits);
  const picked = [
    ...papers.map((name) => first((e) => !e.fails && e.methods[0] === name)),
    first((e) => e.fails),
  ].filter(Boolean);
  const others = examples.filter((e) => !picked.includes(e));
  return [...picked, ...others.filter((e) => !e.fails), ...others.filter((e) => e.fails)];
}

/** Offers the examples. */
export class Tiles {
  /** onpick(example): one was pressed. */
  constructor(catalog, onpick) {
    this.catalog = catalog;
    this.onpick = onpick;
    const all = offered(catalog);
    const rest = all.slice(FIRST);
    const more = W.ask.moreExamples(rest.length);
    this.node = h(
      'div.vl-trays',
      this.tray(W.ask.examples, all.slice(0, FIRST)),
      rest.length > 0 && folded('details.vl-more-examples', more, this.tray(more, rest)),
    );
  }

  /** A group of tiles. */
  tray(name, examples) {
    const tiles = examples.map((example) => this.tile(example));
    return h('div.vl-examples', { role: 'group', 'aria-label': name }, tiles);
  }

  /** What an example shows: its method, and how much faster it was. */
  gained({ methods, gains }) {
    const [{ title }] = this.catalog.methods.filter(({ name }) => name === methods[0]);
    const who = methods.length > 1 ? W.ask.several(methods.length) : title;
    return gains.length ? `${who} ${fmt.times(Math.max(...gains))}` : who;
  }

  /** An example as a button. */
  tile(example) {
    const { fails, id, title, why } = example;
    const on = { click: () => this.onpick(example) };
    return h(
      fails ? 'button.vl-tile.fails' : 'button.vl-tile',
      { title: fails || why, data: { example: id }, on },
      h('span.vl-tile-media', thumbnails(example).slice(0, 2)),
      h('span.vl-tile-title', title),
      h('span.vl-tile-note', this.gained(example)),
      fails && h('span.vl-tile-note.fails', W.ask.fails),
    );
  }
}
