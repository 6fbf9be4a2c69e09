/* Compares a lane with the AR lane: whether the answers agree, and whether the times are
   meaningful. Decides as report/remarks.py does; a test compares the two. Lanes are folds
   (fold.js). */

import { costs } from './fold.js';

export const MIN_TOKENS = 20; // below it a time says nothing: no speedup, no place
const MOST_WORDS = 4096; // of an answer that are compared: its time grows with their square
export const MAX_LOAD = 0.25; // share of the machine that other programs may use
const MAX_JITTER = 0.3; // width of the middle half of the AR steps over their median
const TIE_NATS = 0.05;
const SLACK = 0.02;
/** The guarantee of a lane that samples independently, as in records.py. */
export const LAW = "the target's law, by a draw of its own";

/** Whether a lane wrote its answer to its end. */
export const whole = (lane) => ['eos', 'length'].includes(lane.end?.stop);

/** {kind: 'same' | 'so_far' | 'tie' | 'law' | 'differs', at, gap, words}: see Agreement in report/remarks.py. */
export function agreement(lane, base) {
  const common = Math.min(lane.tokens.length, base.tokens.length);
  const at = lane.tokens.findIndex((t, i) => i < common && t.id !== base.tokens[i].id);
  const both = whole(lane) && whole(base);
  if (at < 0)
    return {
      kind: both && lane.tokens.length === base.tokens.length ? 'same' : 'so_far',
      at: common,
      gap: null,
      words: null,
    };
  const nats = gap(base, at, lane.tokens[at].id);
  const tie = lane.begin.lossless && nats !== null && Math.abs(nats) < TIE_NATS;
  return {
    kind: lane.begin.exactness === LAW ? 'law' : tie ? 'tie' : 'differs',
    at,
    gap: nats,
    words: both ? wordsAgreeing(lane.laid, base.laid) : null,
  };
}

/** By how many nats AR's token was ahead of another at a position, including the noise of the draw
 *  when sampling; null if that was not recorded. */
export function gap(base, at, other) {
  const own = base.tokens[at];
  const round = base.rounds[own.round];
  if (base.begin.sampling.temperature) {
    const { rival, gap: nats } = round.notes.draws ?? {};
    return rival?.[own.at] === other && Number.isFinite(nats?.[own.at]) ? nats[own.at] : null;
  }
  const list = round.candidates?.[own.at] ?? [];
  const prob = (id) => list.find((c) => c.id === id)?.prob;
  const [a, b] = [prob(own.id), prob(other)];
  return a && b ? Math.log(a / b) : null;
}

/** Whether times are meaningful: {kind: 'short', tokens}, {kind: 'disturbed', why, ...figures} or
 *  {kind: 'sound'}. */
export function timing(lane, base) {
  const tokens = Math.min(lane.tokens.length, base.tokens.length);
  if (tokens < MIN_TOKENS) return { kind: 'short', tokens };
  const cost = costs(lane, base);
  if (cost && cost.speedup > cost.tau * (1 + SLACK))
    return { kind: 'disturbed', why: 'above', speedup: cost.speedup, tau: cost.tau };
  const load = Math.max(0, lane.end?.load ?? 0, base.end?.load ?? 0);
  if (load > MAX_LOAD) return { kind: 'disturbed', why: 'load', load };
  const steps = base.rounds
    .map((r) => r.draft_s + r.verify_s + r.commit_s + r.other_s)
    .sort((a, b) => a - b);
  const n = steps.length;
  const [low, middle, high] = [n >> 2, n >> 1, (3 * n) >> 2].map((i) => steps[i]);
  if (n >= MIN_TOKENS && high - low > MAX_JITTER * middle)
    return { kind: 'disturbed', why: 'jitter', low, high };
  return { kind: 'sound' };
}

const CUT = ['cancelled', 'error'];

/** Why no speedup of a lane is shown: the result of `timing`, or {kind: 'cut'}; null if one is.
 *  While lanes run, only the load of the machine is known. */
export function doubt(race, lane) {
  const base = race.baseline;
  if (!base || lane === base) return null;
  if (race.list.some((one) => CUT.includes(one.end?.stop))) return { kind: 'cut' };
  if (!race.list.every((one) => one.end))
    return race.load > MAX_LOAD ? { kind: 'disturbed', why: 'load', load: race.load } : null;
  const timed = timing(lane, base);
  return timed.kind === 'sound' ? null : timed;
}

/** Why the speedup of some lanes is not shown, every kind of reason once: [[reason, lanes]]. What
 *  disturbs one lane disturbs the machine: of several, the clearest is told. */
export function doubts(race) {
  const found = new Map();
  for (const lane of race.list) {
    const reason = doubt(race, lane);
    if (!reason) continue;
    const [told, lanes] = found.get(reason.kind) ?? [reason, []];
    const clearer = reason.load > (told.load ?? 0) || reason.tokens < told.tokens;
    found.set(reason.kind, [clearer ? reason : told, [...lanes, lane]]);
  }
  return [...found.values()];
}

/** {kind: 'early', tokens} while less of a lane is shown than can be timed, in a race or its replay; else null. */
export function early(race, lane) {
  const base = race.baseline;
  if (!base || lane === base || race.finished) return null;
  const tokens = Math.min(race.now(lane).tokens, race.now(base).tokens);
  return tokens < MIN_TOKENS ? { kind: 'early', tokens } : null;
}

const words = (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).slice(0, MOST_WORDS);

/** Share of words that agree once two texts are aligned. */
export function wordsAgreeing(text, other) {
  const [a, b] = [words(text), words(other)];
  if (!a.length && !b.length) return 1;
  return blocks(a, b).reduce((sum, [, , size]) => sum + size, 0) / Math.max(a.length, b.length);
}

/** Matching blocks [i, j, size] of two lists, the longest first taken, as Python's difflib does. */
export function blocks(a, b) {
  const places = new Map();
  b.forEach((word, j) => (places.get(word) ?? places.set(word, []).get(word)).push(j));
  const found = [];
  const rest = [[0, a.length, 0, b.length]];
  while (rest.length) {
    const [alo, ahi, blo, bhi] = rest.pop();
    let [bi, bj, size] = [alo, blo, 0];
    let before = new Map();
    for (let i = alo; i < ahi; i += 1) {
      const now = new Map();
      for (const j of places.get(a[i]) ?? []) {
        if (j >= blo && j < bhi) {
          const k = (before.get(j - 1) ?? 0) + 1;
          now.set(j, k);
          if (k > size) [bi, bj, size] = [i - k + 1, j - k + 1, k];
        }
      }
      before = now;
    }
    if (size) {
      found.push([bi, bj, size]);
      rest.push([alo, bi, blo, bj], [bi + size, ahi, bj + size, bhi]);
    }
  }
  return found.sort((x, y) => x[0] - y[0]);
}
