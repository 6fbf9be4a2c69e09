/* The examples as tiles: one a paper and one that fails are in sight. */

import { folded, h, thumbnail } from './dom.js';
import { W, fmt } from '../words/words.js';

const FRAMES = 4; // of a clip
const FIRST = 6; // tiles in sight

/** Pictures, and of clips the first frames. */
export function stills(shown = []) {
  const first = ({ name, frames }) =>
    frames
      .filter(Boolean)
      .slice(0, FRAMES)
      .map((url) => thumbnail({ url, name }));
  return shown.flatMap(first);
}

/** The first of every paper and the first that fails, of the page's own pair if it has one; then the others. */
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

export function tiles(catalog, onpick) {
  const all = offered(catalog);
  const rest = all.slice(FIRST);
  const group = (name, examples) => {
    const made = examples.map((example) => tileOf(catalog, example, onpick));
    return h('div.vl-examples', { role: 'group', label: name }, made);
  };
  const more = W.ask.moreExamples(rest.length);
  return h(
    'div.vl-trays',
    group(W.ask.examples, all.slice(0, FIRST)),
    rest.length > 0 && folded('details.vl-more-examples', more, group(more, rest)),
  );
}

function tileOf(catalog, example, onpick) {
  const { fails, gains, id, media, methods, title, why } = example;
  const pictures = media
    .slice(0, 2)
    .map(({ kind, url }) => thumbnail({ kind, url }, { loading: 'lazy' }));
  const method = catalog.methods.find(({ name }) => name === methods[0]);
  const who = methods.length > 1 ? W.ask.several(methods.length) : method.title;
  return h(
    fails ? 'button.vl-tile.fails' : 'button.vl-tile',
    { title: fails || why, data: { example: id }, click: () => onpick(example) },
    h('span.vl-tile-media', pictures),
    h('span.vl-tile-title', title),
    h('span.vl-tile-note', gains.length ? `${who} ${fmt.times(Math.max(...gains))}` : who),
    fails && h('span.vl-tile-note.fails', W.ask.fails),
  );
}
