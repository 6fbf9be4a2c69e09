/* What to look at first in a finished race: a lane, and a token of it. */

import { chance, children, countKept } from './fold.js';
import { doubt, hedged, speedOf } from './verdict.js';
import { W } from '../words/words.js';

/** The lane that won: the only rival, or the fastest whose times are sound; else with a rough speedup,
 *  lossless ones first. @param {Race} race @returns {Lane | null} */
export function best(race) {
  const all = race.rivals;
  if (all.length < 2) return all[0] ?? null;
  const sound = all.filter((lane) => !doubt(race, lane));
  const rough = all.filter((lane) => hedged(doubt(race, lane)));
  const exact = rough.filter((lane) => lane.begin.lossless);
  const among = [sound, exact, rough].find((lanes) => lanes.length) ?? [null];
  return among.reduce((a, b) => (speedOf(race, b) > speedOf(race, a) ? b : a));
}

/** A model, or a rule, such as lookup, which is certain of all it drafts. @param {Lane} lane */
export const drafterInWords = (lane) =>
  lane.rounds.some((round) => round.tree.draft_logp?.some((logp) => logp))
    ? W.headline.model
    : W.headline.rule;

/** Select the best lane's most instructive token, unless the visitor chose; if the race was stopped, that of the
 *  first lane that wrote. @param {Race} race */
export function point(race) {
  if (race.selected) return;
  if (!race.chosen) race.setFocus((best(race) ?? race.rivals.find(wrote))?.name, false);
  const lane = race.focused;
  const token = lane && instructive(lane);
  if (lane && token !== null) race.select({ lane: lane.name, token });
}

/** @param {Lane} lane */
const wrote = ({ rounds }) => rounds.length > 0;

/** The token where the drafter was surest of something else, first of rounds that kept some drafts. @param {Lane} lane */
export function instructive(lane) {
  let found = null;
  let most = 0;
  lane.rounds.forEach((round) => {
    const first = countKept(round) ? 1 : 0;
    const p = (i) => chance(round.tree.draft_logp, i) ?? 0;
    round.tokens.forEach((token, at) => {
      const stands = round.path[at];
      const taken = token.origin === 'draft' ? round.path[at + 1] : null;
      const rivals = children(round.tree)[stands].filter((i) => i !== taken);
      const rival = Math.max(0, ...rivals.map(p));
      const score =
        (rival - (taken ? p(taken) : 0)) *
        (taken ? 1 : 0.6) *
        (/[\p{L}\d]{3}/u.test(token.text) ? 1 : 0.3);
      if (score > 0.05 && score + first > most)
        [most, found] = [score + first, lane.first(round) + at];
    });
  });
  return found;
}
