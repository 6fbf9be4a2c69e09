/* Why a lane has no speedup, and where its answer differs from AR's: found by the server once it is over
   (report/remarks.py); before, load and length are known. */

import { wordsOf } from './fold.js';
import { W } from '../words/words.js';

/** Why a lane's speedup is doubtful. @param {Race} race @param {Lane} lane @returns {Doubtful | null} */
export function doubt(race, lane) {
  const base = race.baseline;
  if (!base || lane === base) return null;
  if (!race.ended) return disturbed(race);
  const { compared } = race.meta;
  if (!compared) return { kind: 'unknown', sentence: W.run.uncompared };
  return compared.cut ? { kind: 'cut', sentence: compared.cut } : compared.lanes[lane.name].doubt;
}

/** What disturbs the times, also of a stopped race. @param {Race} race @returns {Doubtful | null} */
export function disturbed({ ended, load, meta: { compared }, rules }) {
  const kind = 'disturbed';
  const all = ended && compared && Object.values(compared.lanes).map((lane) => lane.doubt);
  if (all) return all.find((why) => why?.kind === kind) ?? null;
  return load > rules.load ? { kind, sentence: W.run.loaded(load), load } : null;
}

/** The rough speedup that is shown with this reason. */
export const hedged = (why) => why?.about || null;

/** Whether a figure is shown, be it a rough one. */
export const timed = (why) => !why || hedged(why) !== null;

/** A lane's speedup, the rough one where times are doubtful; null while neither is known. */
export const speedOf = (race, lane) =>
  doubt(race, lane) ? hedged(doubt(race, lane)) : race.speedup(lane);

/** All reasons, the clearest of every kind, each with its lanes. */
export function doubts(race) {
  const found = new Map();
  for (const lane of race.list) {
    const reason = doubt(race, lane);
    if (!reason) continue;
    const [told, lanes] = found.get(reason.kind) ?? [reason, []];
    const clearer = (reason.load ?? 0) > (told.load ?? 0) || reason.tokens < told.tokens;
    found.set(reason.kind, [clearer ? reason : told, [...lanes, lane]]);
  }
  return [...found.values()];
}

/** Why a lane has no speedup yet: less of it is shown than can be timed. @returns {Doubtful | null} */
export function early(race, lane) {
  const base = race.baseline;
  if (!base || lane === base || race.finished) return null;
  const tokens = Math.min(race.now(lane).n_tokens, race.now(base).n_tokens);
  const needed = race.rules.tokens;
  return tokens < needed ? { kind: 'early', sentence: W.run.early(tokens, needed) } : null;
}

/** null where answers are equal, or one was stopped: the other merely goes on. @returns {Differences | null} */
export function differences(race, lane) {
  const spans = race.meta.compared?.lanes[lane.name]?.changes;
  if (!spans?.length || !lane.complete || !race.baseline.complete) return null;
  const words = ({ tokens }, ...part) => wordsOf(tokens.slice(...part));
  /** Whether a position lies within a change: side 0 counts AR's positions, 2 the lane's. */
  const within = (side) => (at) => spans.some((span) => span[side] <= at && at < span[side + 1]);
  /** The positions of a lane's tokens that the other one lacks. */
  const lacking = ({ tokens }, side) => new Set([...tokens.keys()].filter(within(side)));
  return {
    shared: spans[0][0],
    base: lacking(race.baseline, 0),
    other: lacking(lane, 2),
    changes: spans.map(([a, b, c, d]) => [words(race.baseline, a, b), words(lane, c, d)]),
  };
}
