/* The examples as tiles: one for each paper and one that fails in sight, the others one press away. */

import { folded, h, thumbnail } from './dom.js';
import { W, fmt } from '../words/words.js';

const FRAMES = 4; // of a clip
const FIRST = 6; // tiles in sight

/** The pictures that a race was shown, of clips the first frames. */
export const stills = (shown = []) =>
  shown.flatMap(({ name, frames }) =>
    frames
      .filter(Boolean)
      .slice(0, FRAMES)
      .map((url) => thumbnail({ url, name })),
  );

/** In order: the first of every paper, the first that fails, the others; of the page's own pair if it has one. */
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
    const more = W.ask.moreExamples(rest.length);
    this.node = h(
      'div.vl-trays',
      this.group(W.ask.examples, all.slice(0, FIRST)),
      rest.length > 0 && folded('details.vl-more-examples', more, this.group(more, rest)),
    );
  }

  group(name, examples) {
    const tiles = examples.map((example) => this.tile(example));
    return h('div.vl-examples', { role: 'group', 'aria-label': name }, tiles);
  }

  gained({ methods, gains }) {
    const { title } = this.catalog.methods.find(({ name }) => name === methods[0]);
    const who = methods.length > 1 ? W.ask.several(methods.length) : title;
    return gains.length ? `${who} ${fmt.times(Math.max(...gains))}` : who;
  }

  tile(example) {
    const { fails, id, media, title, why } = example;
    const pictures = media
      .slice(0, 2)
      .map(({ kind, url }) => thumbnail({ kind, url }, { loading: 'lazy' }));
    return h(
      fails ? 'button.vl-tile.fails' : 'button.vl-tile',
      { title: fails || why, data: { example: id }, click: () => this.onpick(example) },
      h('span.vl-tile-media', pictures),
      h('span.vl-tile-title', title),
      h('span.vl-tile-note', this.gained(example)),
      fails && h('span.vl-tile-note.fails', W.ask.fails),
    );
  }
}
