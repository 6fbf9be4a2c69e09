/* What a drafter saw in the pictures and in its views of the prompt, as numbers to draw. */

import { dig } from './fold.js';

/** How much more than usual a token looked at every position, 0 to 1: the ratio to the mean of `all` tokens, from its
 *  2nd to its 98th percentile. @param {ArrayLike<number>} looks @param {ArrayLike<number>[]} all */
export function contrast(looks, all) {
  const usual = Array.from(looks, (_, i) => all.reduce((sum, l) => sum + l[i], 0) / all.length);
  const more = usual.map((mean, i) =>
    all.length > 1 ? Math.log((looks[i] + 1) / (mean + 1)) : looks[i],
  );
  const sorted = [...more].sort((a, b) => a - b);
  const [low, high] = [0.02, 0.98].map((q) => sorted[Math.round(q * (sorted.length - 1))]);
  return more.map((v) => (high > low ? Math.min(1, Math.max(0, (v - low) / (high - low))) : 0));
}

/** The view that gave an accepted draft most of its weighted probability, and the view's place.
 *  @param {Lane} lane @param {Round} round @param {number} at the token's place in the round */
export function winner(lane, round, at) {
  const chart = lane.begin.charts?.find(({ series, tint }) => tint === 'views' && series.length);
  const { tokens, views } = round;
  if (!chart || !views || tokens[at].origin === 'target') return null;
  /** @type {{ [view: string]: number }} */
  const weights = dig(round, chart.series[0].path) ?? {};
  /** The weighted probability of the token. @param {string} view */
  const given = (view) =>
    weights[view] * (views[view]?.[at]?.find(({ id }) => id === tokens[at].id)?.prob ?? 0);
  const names = Object.keys(weights);
  const most = Math.max(0, ...names.map(given));
  const place = names.findIndex((view) => most > 0 && given(view) === most);
  return place < 0 ? null : { view: names[place], place };
}

/** What the target would have written for a relaxed token. @param {Round} round @param {number} at */
export function instead({ candidates, tokens }, at) {
  const top = candidates?.[at]?.[0];
  return tokens[at].origin === 'relaxed' && top && top.id !== tokens[at].id ? top.text : null;
}
