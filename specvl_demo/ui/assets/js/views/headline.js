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
  const of = rivals.length ? W.headline.of(lane.title) : '';
  const differs = differences(race, lane);
  const quoted = differs && rivals.length < FEW_RIVALS;
  const x = race.speedup(lane);
  const total = race.meta.compared.lanes[lane.name].speedup_total;
  const kept = lane.tokens.flatMap(({ origin }, i) => (origin === 'draft' ? [lane.said(i)] : []));
  const by = drafterInWords(lane);
  const green = kept.some((text) => withEndMark(text) !== ENDS);
  const guessed = green
    ? [h('span.tk.draft', W.headline.green), of, h('span.vl-how', W.headline.guessed(by))]
    : [W.headline[kept.length ? 'ended' : 'none'](by, of)];
  const relaxed = h('span.tk.relaxed', W.headline.relaxed(t.n_relaxed, t.n_tokens));
  return [
    ...guessed,
    ...(t.n_relaxed ? ['; ', relaxed, W.headline.through(t.n_relaxed)] : []),
    W.headline.answer(!differs, lane.given.text),
    doubted
      ? W.headline.doubtful(t.tau, hedged(doubted), doubted.sentence)
      : h('b', W.headline.took(x, total)),
    rivals.length && x > 1 && !doubted && W.headline.fastest(rivals.length + 1),
    price(race, rivals.length ? lane.title : 'it', differs, quoted),
    ...answers(race, differs && !quoted ? [lane, ...rivals] : rivals, differs),
  ].filter(Boolean);
}

/** What the speed cost: as it is known of an example, or the words that differ. */
function price(race, who, differs, quoted) {
  if (differs && race.meta.price) return W.headline.known(race.meta.price);
  const changes = quoted && differs.changes.map((pair) => pair.map((t) => laid(t.trim(), 31)));
  return quoted ? W.headline.price(who, changes) : '.';
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

/** Which of these answers agree with AR's. differs: the first one does not. */
function answers(race, lanes, differs) {
  const names = (some) => some.map((one) => one.title);
  const apart = lanes.filter((one) => differences(race, one));
  const alike = lanes.filter((one) => !apart.includes(one));
  return [
    alike.length && W.headline.alike(names(alike), differs),
    apart.length && W.headline.apart(names(apart)),
  ];
}
