/* The colours of methods in races and charts: those in sight of the form have their own everywhere, the others take what
   these leave of six. The plain one's number is 0. */

/** @import { Catalog } from './types.js' */

const MOST = 6;

/** @type {string[]} */
let own = [];

/** Give the methods in sight of the form their own colours. @param {Pick<Catalog, 'methods'>} catalog */
export function keepColours({ methods }) {
  const inSight = methods.filter(({ name, expert }) => name !== 'ar' && !expert);
  own = inSight.slice(0, MOST).map(({ name }) => name);
}

/** Numbers of the colours of methods that stand beside each other: all different, of six. @param {string[]} methods */
export function coloursOf(methods) {
  /** @param {string} name @param {number} i */
  const first = (name, i) => methods.indexOf(name) === i && own.indexOf(name) + 1;
  const fixed = methods.map((name, i) => (name === 'ar' ? 0 : first(name, i) || null));
  const free = Array.from({ length: MOST }, (_, i) => i + 1).filter((n) => !fixed.includes(n));
  let others = 0;
  return fixed.map((number) => number ?? free[others++] ?? 1 + (others % MOST));
}
