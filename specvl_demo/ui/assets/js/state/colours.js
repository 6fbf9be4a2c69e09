/* The colours of methods in races and charts: those in sight of the form have their own everywhere, the others take
   what these leave of six. */

const OWN = ['chain', 'tabed', 'sage', 'lvspec', 'hivis', 'dream'];
const MOST = OWN.length;

/** The number of every method's colour: 0 is AR's, the others' differ while six suffice.
 *  @param {string[]} methods */
export function coloursOf(methods) {
  /** 0 without a colour of its own, or where it has been given. @param {string} name @param {number} i */
  const own = (name, i) => methods.indexOf(name) === i && OWN.indexOf(name) + 1;
  const fixed = methods.map((name, i) => (name === 'ar' ? 0 : own(name, i) || null));
  const free = OWN.map((_, i) => i + 1).filter((n) => !fixed.includes(n));
  let others = 0;
  return fixed.map((number) => number ?? free[others++] ?? 1 + (others % MOST));
}
