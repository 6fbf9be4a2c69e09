/* The examples as tiles in two trays: the first of their pictures, or the beginning of their clip, and a title. */

import { h, icon, roving } from './dom.js';
import { W } from './words.js';

const FRAMES = 4;

/** What an example shows, small. */
export function thumbnails({ thumbs, media }) {
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

/** Two trays: what the models get right, and what they get wrong, folded away, with the reason of each. */
export class Tiles {
  /** onpick(example): one was pressed. */
  constructor({ examples }, onpick) {
    this.onpick = onpick;
    const right = examples.filter((example) => !example.fails);
    const wrong = examples.filter((example) => example.fails);
    this.node = h(
      'div.vl-trays',
      right.length > 0 && this.tray(W.ask.examples, right),
      wrong.length > 0 &&
        h(
          'details.vl-fails',
          h('summary', icon('chevron'), h('span', W.ask.fails)),
          this.tray(W.ask.fails, wrong),
        ),
    );
  }

  tray(name, examples) {
    const many = String(examples.length > 6);
    const tiles = examples.map((example) => this.tile(example));
    const at = { class: 'vl-examples', role: 'toolbar', 'aria-label': name, data: { many } };
    return roving(h('div', at, tiles));
  }

  tile(example) {
    return h(
      'button.vl-tile',
      {
        'aria-label': example.title,
        data: { example: example.id },
        on: { click: () => this.onpick(example) },
      },
      h('span.vl-tile-media', thumbnails(example).slice(0, 2)),
      h('span.vl-tile-title', example.title),
      example.fails && h('span.vl-tile-fails', example.fails),
    );
  }
}
