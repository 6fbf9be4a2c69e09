/* Pictures with their patches: where the drafter looked, what its views saw. */

import { h, options, put, refill } from './dom.js';
import { contrast } from '../records/looks.js';
import { W } from '../words/words.js';

/** Spans of prompt positions beside a picture's grid have none. */
function picturesOf(media, spans) {
  const gridded = new Set(spans.filter((s) => s.rows).map((s) => `${s.media} ${s.frame}`));
  return spans
    .filter((s) => s.rows || !gridded.has(`${s.media} ${s.frame}`))
    .map((span) => ({
      span,
      name: media[span.media]?.name,
      url: media[span.media]?.frames?.[span.frame],
    }))
    .filter(({ url }) => url);
}

/** null without pictures. at: place in its round. */
export function sight(race, lane, round, at) {
  const list = picturesOf(race.meta.shown ?? [], lane.begin.spans);
  const looks = Array.isArray(round.notes.attention) ? round.notes.attention[at] : null;
  return list.length ? heatmap(lane, list, typeof looks === 'string' ? looks : null) : null;
}

/** Kept for the next token. */
let chosen = '';

/** Dark where the drafter did not look. looks: base64, a byte a visual position. */
function heatmap(lane, list, looks) {
  const views = lane.begin.seen.filter((seen) => seen.index.some((i) => i >= 0));
  const modes = [
    ...(looks ? [['looks', W.patches.looks]] : []),
    ...views.map((v) => [v.view, W.patches.seen(W.views[v.view] ?? v.view)]),
  ];
  const strip = h('div.vl-patches');
  const note = h('figcaption');
  const show = (mode) => {
    refill(
      strip,
      list.map((one) => picture(one, coverOf(lane, one.span, mode, looks))),
    );
    const view = views.find((v) => v.view === mode);
    put(note, view ? shareInWords(view, list) : looks && W.patches.looksNote);
  };
  const mode = modes.some(([name]) => name === chosen) ? chosen : modes[0]?.[0];
  show(mode);
  const key = h('p.vl-looks', h('span', W.patches.little), h('i'), h('span', W.patches.much));
  key.hidden = !looks;
  const menu = h('select', { label: W.patches.choose }, options(modes));
  menu.value = mode ?? '';
  menu.onchange = () => show((chosen = menu.value));
  return h('figure.vl-sight', modes.length > 1 && menu, strip, key, note);
}

/** cover: the opacity of every patch, row by row. */
function coverOf(lane, span, mode, looks) {
  if (!span.rows || !span.cols || mode === undefined) return null;
  const n = span.rows * span.cols;
  if (mode === 'looks') {
    // A byte a visual position, all pictures one after the other.
    const earlier = lane.begin.spans.filter((s) => s.stop <= span.start);
    const before = earlier.reduce((sum, s) => sum + s.stop - s.start, 0);
    const within = (text) => bytesOfBase64(text).subarray(before, before + n);
    const all = lane.rounds.flatMap(({ notes }) => notes.attention ?? []);
    const maps = all.filter((map) => typeof map === 'string').map(within);
    const same = maps.filter((map) => map.length === n);
    return { kind: 'looks', cover: contrast(within(looks), same).map((v) => 1 - v) };
  }
  const seen = new Set(lane.begin.seen.find((s) => s.view === mode).index);
  const hidden = Array.from({ length: n }, (_, i) => Number(!seen.has(span.start + i)));
  return { kind: 'hidden', cover: hidden };
}

function bytesOfBase64(looks) {
  try {
    return Uint8Array.from(atob(looks), (c) => c.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

function picture({ url: src, span, name }, painted) {
  const clip = span.kind === 'video';
  const alt = clip ? W.patches.frame(name ?? '', span.frame) : (name ?? W.patches.alt);
  const number = clip && h('small', { 'aria-hidden': 'true' }, span.frame + 1);
  const image = h('img', { src, alt, loading: 'lazy' });
  return h('div.vl-picture', image, number, painted && drawCover(span, painted));
}

function drawCover(span, { kind, cover: values }) {
  const canvas = h('canvas', { width: span.cols, height: span.rows, class: kind });
  const g = canvas.getContext('2d');
  const image = g.createImageData(span.cols, span.rows);
  values.forEach((v, i) => {
    image.data.set([20, 22, 26, 190 * v], 4 * i);
  });
  g.putImageData(image, 0, 0);
  return canvas;
}

function shareInWords(view, list) {
  const within = ({ span }) => view.index.filter((i) => i >= span.start && i < span.stop);
  const kept = new Set(list.flatMap(within)).size;
  const all = list.reduce((sum, { span }) => sum + span.stop - span.start, 0);
  const told = view.view === 'pooled' ? W.patches.pooled(kept, all) : W.patches.share(kept, all);
  const words = view.words?.trim();
  return words ? `${told} ${W.patches.instead(words)}` : told;
}
