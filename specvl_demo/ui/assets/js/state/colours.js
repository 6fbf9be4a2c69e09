/* The colours of methods in races and charts: those in sight of the form have their own everywhere, the others take
   what these leave of six. The plain one's number is 0. */

const OWN = ['chain', 'tabed', 'sage', 'lvspec', 'hivis', 'dream'];
const MOST = OWN.length;

/** The number of every method's colour: AR's is 0, the others' are of six, all different while they
 *  suffice. @param {string[]} methods */
export function coloursOf(methods) {
  /** A method's own number at its first place among them, if it has one. @param {string} name
   *  @param {number} i */
  const own = (name, i) => methods.indexOf(name) === i && OWN.indexOf(name) + 1;
  const fixed = methods.map((name, i) => (name === 'ar' ? 0 : own(name, i) || null));
  const free = Array.from({ length: MOST }, (_, i) => i + 1).filter((n) => !fixed.includes(n));
  let others = 0;
  return fixed.map((number) => number ?? free[others++] ?? 1 + (others % MOST));
}
