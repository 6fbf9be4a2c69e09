/* The examples as tiles: the first of their pictures, or the beginning of their clip, and a title. One for each paper
   and one that fails are in sight, the others one press away. */

import { h, icon } from './dom.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

const FRAMES = 4;
const FIRST = 6;

/** What an example shows, small. */
function thumbnails({ thumbs, media }) {
  if (thumbs.length) return thumbs.map((src) => h('img', { src, alt: '', loading: 'lazy' }));
  return media.map(({ url }) =>
    h('video', { src: url, muted: true, playsinline: true, preload: 'metadata' }),
  );
}

/** What a race was shown: its pictures, of a clip the first frames. */
export const stills = (shown = []) =>
  shown.flatMap(({ name, frames }) =>
    frames
      .filter(Boolean)
      .slice(0, FRAMES)
      .map((src) => h('img', { src, alt: name })),
  );

/** Examples in the order in which they are offered: the first of every paper, the first that fails, the others; where
 *  there is a choice, those of the page's own pair. */
export function offered({ examples, papers, pairs }) {
  const first = (fits) =>
    examples.find((e) => fits(e) && e.pair === pairs[0].id) ?? examples.find(fits);
  const picked = [
    ...papers.map((name) => first((e) => !e.fails && e.methods[0] === name)),
    first((e) => e.fails),
  ].filter(Boolean);
  const others = examples.filter((e) => !picked.includes(e));
  return [...picked, ...others.filter((e) => !e.fails), ...others.filter((e) => e.fails)];
}

export class Tiles {
  /** onpick(example): one was pressed. */
  constructor(catalog, onpick) {
    this.catalog = catalog;
    this.onpick = onpick;
    const all = offered(catalog);
    const rest = all.slice(FIRST);
    this.node = h(
      'div.vl-trays',
      this.tray(W.ask.examples, all.slice(0, FIRST)),
      rest.length > 0 &&
        h(
          'details.vl-more-examples',
          h('summary', icon('chevron'), h('span', W.ask.moreExamples(rest.length))),
          this.tray(W.ask.moreExamples(rest.length), rest),
        ),
    );
  }

  tray(name, examples) {
    const tiles = examples.map((example) => this.tile(example));
    return h('div.vl-examples', { role: 'group', 'aria-label': name }, tiles);
  }

  /** What was raced, and the best speedup. */
  gained({ methods, gains }) {
    const [{ title }] = this.catalog.methods.filter(({ name }) => name === methods[0]);
    const who = methods.length > 1 ? W.ask.several(methods.length) : title;
    return gains.length ? `${who} ${fmt.times(Math.max(...gains))}` : who;
  }

  tile(example) {
    return h(
      'button',
      {
        class: example.fails ? 'vl-tile fails' : 'vl-tile',
        title: example.fails || example.why,
        data: { example: example.id },
        on: { click: () => this.onpick(example) },
      },
      h('span.vl-tile-media', thumbnails(example).slice(0, 2)),
      h('span.vl-tile-title', example.title),
      h('span.vl-tile-note', this.gained(example)),
      example.fails && h('span.vl-tile-note.fails', W.ask.fails),
    );
  }
}
