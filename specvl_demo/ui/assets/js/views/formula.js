/* Formulas as MathML, from a small notation of nested lists: ['sub', a, b], ['sup', a, b], ['subsup', a, b, c],
   ['frac', a, b], ['sum', below, above], or a plain list for a row. */

import { mathml } from './dom.js';

const TAGS = { sub: 'msub', sup: 'msup', subsup: 'msubsup', frac: 'mfrac' };

function tagOf(symbol) {
  if (/^[\d.]+$/.test(symbol)) return 'mn';
  return /^[\p{L}̃̂]+$/u.test(symbol) ? 'mi' : 'mo';
}

function build(expression) {
  if (typeof expression === 'string')
    return mathml(tagOf(expression), { stretchy: 'false' }, expression);
  const [head, ...rest] = expression;
  if (head in TAGS) return mathml(TAGS[head], rest.map(build));
  if (head === 'sum') return mathml('munderover', mathml('mo', '∑'), rest.map(build));
  if (head === 'text') return mathml('mtext', rest[0].replaceAll(' ', '\u00a0')); // else it is trimmed
  return mathml('mrow', expression.map(build));
}

export const formula = (expression) => mathml('math', { displaystyle: 'true' }, build(expression));
