/* The colours of methods: some have their own everywhere, the others take what these leave of six. */

const OWN = ['chain', 'tabed', 'sage', 'lvspec', 'hivis', 'dream'];
const MOST = OWN.length;

/** The number of every method's colour: 0 is AR's, the others' differ while six suffice.
 *  @param {string[]} methods */
export function coloursOf(methods) {
  const fixed = methods.map((name, i) => {
    if (name === 'ar') return 0;
    return (methods.indexOf(name) === i && OWN.indexOf(name) + 1) || null; // each is given once
  });
  const free = OWN.map((_, i) => i + 1).filter((n) => !fixed.includes(n));
  let others = 0;
  return fixed.map((number) => number ?? free[others++] ?? 1 + (others % MOST));
}
