/* How fast pairs were in races on this page, and how busy the machine was: from that follows how long a bench takes. */

/** @import { Race } from './race.js' */

/** A pair in a race: seconds before the first token and for each, and the `free` share of the machine.
 *  @typedef {{ before: number, token: number, free: number }} Speed */

/** Learns from races how long an answer takes. */
export class Speeds {
  /** By pair, of its last race. @type {{ [pair: string]: Speed }} */
  raced = {};
  free = 1; // what other programs left the last race of all

  /** Note how fast a race's pair was, and how busy the machine.
   *  @param {Pick<Race, 'list' | 'meta'>} race */
  learn({ list, meta }) {
    const lanes = list.filter((lane) => lane.tokens.length);
    const token = middle(
      lanes.map((lane) => lane.totalsAfter(Infinity).clock_s / lane.tokens.length),
    );
    const before = middle(lanes.map((lane) => lane.before));
    this.free = Math.max(0.01, 1 - Math.max(0, ...list.map((lane) => lane.end?.load ?? 0)));
    if (meta.asked) this.raced[meta.asked.pair] = { before, token, free: this.free };
  }

  /** Seconds that an answer of a pair takes on the machine as busy as it was last found; undefined
   *  if unknown. @param {string} pair @param {number} tokens */
  seconds(pair, tokens) {
    const raced = this.raced[pair];
    return raced && ((raced.before + tokens * raced.token) * raced.free) / this.free;
  }
}

/** The median. @param {number[]} numbers */
const middle = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
