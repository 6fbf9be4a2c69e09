/* Numbers as the page writes them; unknown is a dash, never zero. */

const UNKNOWN = '–';

/** @type {(write: (x: number) => string) => (x: unknown) => string} */
const known = (write) => (x) => (typeof x === 'number' && Number.isFinite(x) ? write(x) : UNKNOWN);

/** @param {number} s */
function inSeconds(s) {
  if (s >= 1) return `${s.toFixed(2)} s`;
  return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
}

/** @param {number} p */
function inThousandths(p) {
  if (p >= 0.9995) return '1.00';
  return p < 0.001 ? '<.001' : p.toFixed(3).replace(/^0/, '');
}

export const fmt = {
  /** @param {unknown} x */
  number: (x, digits = 2) => known((n) => n.toFixed(digits))(x),
  speed: known((x) => x.toFixed(x >= 99.95 ? 0 : 1)),
  times: known((x) => `${x.toFixed(2)}×`),
  seconds: known(inSeconds),
  percent: known((x) => `${(100 * x).toFixed(x > 0 && x < 0.095 ? 1 : 0)} %`),
  prob: known(inThousandths),
  /** @param {number} n */
  bytes: (n) => (n >= 1 << 20 ? `${(n / (1 << 20)).toFixed(1)} MB` : `${Math.ceil(n / 1024)} kB`),
};
