/* How fast pairs were in races on this page, and how busy the machine: what a bench may take. */

export class Speeds {
  /** Of each pair's last race. @type {{ [pair: string]: Speed }} */
  raced = {};
  free = 1; // what other programs left the last race

  /** @param {Pick<Race, 'list' | 'meta'>} race */
  learn({ list, meta }) {
    const lanes = list.filter((lane) => lane.tokens.length);
    const token = median(
      lanes.map((lane) => lane.totalsAfter(Infinity).clock_s / lane.tokens.length),
    );
    const before = median(lanes.map((lane) => lane.before));
    this.free = Math.max(0.01, 1 - Math.max(0, ...list.map((lane) => lane.end?.load ?? 0)));
    if (meta.asked) this.raced[meta.asked.pair] = { before, token, free: this.free };
  }

  /** Seconds of an answer, on a machine as busy as in the last race. @param {string} pair @param {number} tokens */
  seconds(pair, tokens) {
    const raced = this.raced[pair];
    return raced && ((raced.before + tokens * raced.token) * raced.free) / this.free;
  }
}

/** @param {number[]} numbers */
const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
