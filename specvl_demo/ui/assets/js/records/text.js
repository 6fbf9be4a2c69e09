/* Untrusted text, made safe for what reads it. */

import { fmt } from '../words/words.js';

const MOST_LETTERS = 200;
/** Of a whole answer. */
export const MOST_TEXT = 20_000;

/** A text cut to what can be laid out: tokens of a trace may have any length, and marks piled up on one letter take a
 *  browser minutes. Several spaces become ones that do not break, so that none is lost. */
export function laid(text, most = MOST_LETTERS) {
  const few = text.length > most ? `${text.slice(0, most)}…` : text;
  const spaced = few.replace(/ {2,}|\t/g, (gap) => '\u00a0'.repeat(gap.length));
  return spaced.replace(/(\p{M}{4})\p{M}+/gu, '$1');
}

/** Plotly reads tags in all that it writes, links too. */
export const forPlotly = (words) =>
  typeof words === 'string' ? words.replaceAll('&', '&amp;').replaceAll('<', '&lt;') : words;

/** Stands for a token that only ends an answer or a turn. */
export const ENDS = '■';

const END_TOKEN = /^<(\|[^|<>]+\||\/?s|eos|end_of_\w+)>$/;

/** The end mark for an end token, else the text. */
export const withEndMark = (text) => (END_TOKEN.test(text) ? ENDS : text);

/** A token's text with spaces and line breaks made visible. */
export function shown(text) {
  return text === '' ? '∅' : laid(withEndMark(text)).replace(/\n/g, '↵').replace(/^\s/, '␣');
}

/** A node's text; its number where the record has no texts. */
export const wordOf = (tree, node) => shown(tree.texts?.[node] ?? `#${tree.tokens[node]}`);

/** A node's probability in words. */
export const probability = (logp, node) =>
  logp?.[node] == null ? null : fmt.prob(Math.exp(logp[node]));
