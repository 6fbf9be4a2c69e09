/* Why a lane has no speedup on the page. The server compares the lanes of a race that is over
   (report/remarks.py) and sends what it found as `race.meta.compared`; while lanes run, only the
   load of the machine and the number of tokens are known. */

import { W } from './words.js';

/** Why no speedup of a lane is shown: {kind: 'cut' | 'short' | 'disturbed' | 'unknown', sentence,
 *  tokens, load}; null if one is. */
export function doubt(race, lane) {
  const base = race.baseline;
  if (!base || lane === base) return null;
  const { load, rules } = race;
  if (!race.list.every((one) => one.end))
    return load > rules.load ? { kind: 'disturbed', sentence: W.run.loaded(load), load } : null;
  const { compared } = race.meta;
  if (!compared) return { kind: 'unknown', sentence: W.run.uncompared };
  return compared.cut ? { kind: 'cut', sentence: compared.cut } : compared.lanes[lane.name].doubt;
}

/** Why the speedup of some lanes is not shown, every kind of reason once: [[reason, lanes]]. What
 *  disturbs one lane disturbs the machine: of several, the clearest is told. */
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

/** {kind: 'early', sentence} while less of a lane is shown than can be timed, in a race or its replay; else null. */
export function early(race, lane) {
  const base = race.baseline;
  if (!base || lane === base || race.finished) return null;
  const tokens = Math.min(race.now(lane).tokens, race.now(base).tokens);
  const needed = race.rules.tokens;
  return tokens < needed ? { kind: 'early', sentence: W.run.early(tokens, needed) } : null;
}
