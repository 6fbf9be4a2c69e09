/* Formulas as MathML, from a small notation of nested lists: ['sub', a, b], ['sup', a, b], ['subsup', a, b, c],
   ['frac', a, b], ['sum', below, above], or a plain list for a row. A string is an identifier, a number or an operator. */

const NS = 'http://www.w3.org/1998/Math/MathML';

/** An element of MathML. */
const make = (tag, ...children) => {
  const node = document.createElementNS(NS, tag);
  node.append(...children);
  return node;
};

const TAGS = { sub: 'msub', sup: 'msup', subsup: 'msubsup', frac: 'mfrac' };

/** The tag of a number, an identifier or an operator. */
function tagOf(text) {
  if (/^[\d.]+$/.test(text)) return 'mn';
  return /^[\p{L}̃̂]+$/u.test(text) ? 'mi' : 'mo';
}

/** The element of an expression. */
function build(x) {
  if (typeof x === 'string') {
    const node = make(tagOf(x), x);
    node.setAttribute('stretchy', 'false');
    return node;
  }
  const [head, ...rest] = x;
  if (head in TAGS) return make(TAGS[head], ...rest.map(build));
  if (head === 'sum') return make('munderover', make('mo', '∑'), ...rest.map(build));
  if (head === 'text') return make('mtext', rest[0].replaceAll(' ', '\u00a0')); // it is trimmed
  return make('mrow', ...x.map(build));
}

/** An expression of this file's notation as a formula. */
export function formula(expression) {
  const math = make('math', build(expression));
  math.setAttribute('displaystyle', 'true');
  return math;
}
