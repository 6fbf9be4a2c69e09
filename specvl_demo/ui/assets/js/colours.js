/* The colours of methods in races and charts: those in sight of the form have their own everywhere, the others take what
   these leave of six. The plain one's number is 0. */

const MOST = 6;

let own = [];

/** Give the methods in sight of the form their own colours. */
export function keepColours({ methods }) {
  own = methods.filter(({ name, expert }) => name !== 'ar' && !expert).map(({ name }) => name);
}

/** Numbers of the colours of methods that stand beside each other: all different, of six. */
export function coloursOf(methods) {
  const fixed = methods.map((name, i) => {
    const at = methods.indexOf(name) === i ? own.indexOf(name) : -1;
    return name === 'ar' ? 0 : at < 0 || at >= MOST ? null : at + 1;
  });
  const free = Array.from({ length: MOST }, (_, i) => i + 1).filter((n) => !fixed.includes(n));
  let others = 0;
  return fixed.map((number) => number ?? free[others++] ?? 1 + (others % MOST));
}
