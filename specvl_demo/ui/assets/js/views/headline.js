/* The sentence above the race, as texts and elements: how lanes compare, how it ended. */

import { h, refill } from './dom.js';
import { ENDS, laid, withEndMark } from '../records/text.js';
import { best, drafterInWords } from '../records/highlights.js';
import { differences, doubt, hedged } from '../records/verdict.js';
import { W, fmt } from '../words/words.js';

const FEW_RIVALS = 2; // whose words are quoted

/** Write such a sentence only if it differs. */
export function tellIn(node, parts) {
  const words = parts.map((part) => part.textContent ?? part).join('');
  if (node.textContent !== words) refill(node, parts);
}

export function headline(race) {
  const base = race.baseline;
  const all = race.rivals;
  const lane = best(race) ?? all.find((one) => one === race.focused) ?? all[0];
  if (!lane || !base)
    return race.list.length ? [W.headline.alone(race.list.map((one) => one.title))] : [];
  if (!race.finished) return whileRunning(race);
  const t = race.now(lane);
  const doubted = doubt(race, lane);
  if (doubted?.kind === 'cut') return [W.headline.cut];
  if (!race.meta.compared) return [`${W.run.uncompared}.`];
  const rivals = all.filter((one) => one !== lane);
  const who = rivals.length ? lane.title : '';
  const differs = differences(race, lane);
  const x = race.speedup(lane);
  const total = race.meta.compared.lanes[lane.name].speedup_total;
  const kept = lane.tokens.flatMap(({ origin }, i) => (origin === 'draft' ? [lane.said(i)] : []));
  const by = drafterInWords(lane);
  const green = kept.some((text) => withEndMark(text) !== ENDS);
  const guessed = green
    ? [h('span.tk.draft', W.headline.green), who && W.headline.of(who)]
    : [W.headline[kept.length ? 'ended' : 'none'](by, who)];
  const relaxed = h('span.tk.relaxed', W.headline.relaxed(t.n_relaxed, t.n_tokens));
  return [
    ...guessed,
    green && h('span.vl-how', W.headline.guessed(by)),
    ...(t.n_relaxed ? ['; ', relaxed, W.headline.through(t.n_relaxed)] : []),
    W.headline.answer(!differs, lane.given.text),
    doubted
      ? W.headline.doubtful(t.tau, hedged(doubted), doubted.sentence)
      : h('b', W.headline.took(x, total)),
    rivals.length && x > 1 && !doubted && W.headline.fastest(rivals.length + 1),
    differs ? price(race, differs, who, rivals.length) : '.',
  ].filter(Boolean);
}

/** What the speed cost: as it is known of an example, or the words that differ, if lanes are few. */
function price({ meta }, { changes }, who, rivals) {
  if (meta.price) return W.headline.known(meta.price);
  if (rivals >= FEW_RIVALS) return W.headline.apart(who);
  const words = changes.map((pair) => pair.map((text) => laid(text.trim(), 31)));
  return W.headline.price(who || 'it', words);
}

function whileRunning(race) {
  const { duration, head, list, slower } = race;
  const title = (lane) => (lane.plain ? W.headline.plain : lane.title);
  const far = (lane) => [title(lane), race.now(lane).tokens_per_s, race.over(lane)];
  const stretched = slower > 1 && W.player.slower(slower);
  const played = head !== null && W.player.played(fmt.seconds(duration), stretched);
  const known = list.map(far).filter(([, speed]) => speed);
  return [played, known.length && W.headline.going(known)].filter(Boolean);
}
