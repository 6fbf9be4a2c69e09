/* The sentence above the race, in plain words and with this race's numbers: what is awaited, how
   the lanes compare, how it ended. Words in a token's colour are marked like tokens. */

import { fmt, h, marked } from './dom.js';
import { ENDS } from '../records/text.js';
import { differences, doubt, doubts, hedged } from '../records/verdict.js';
import { W } from '../words/words.js';

const FEW = 2; // lanes beside the plain one, up to which their words are quoted

/** The lane that the sentence is about: the only one that drafts, or the fastest of those whose times are meaningful;
 *  if there are none, of those that have a rough speedup, and first of those whose answer is the plain model's by
 *  their method. null where times tell of no lane that it won. */
export function best(race) {
  const all = race.list.filter((lane) => lane !== race.baseline);
  if (all.length < 2) return all[0] ?? null;
  const speed = (lane) => hedged(doubt(race, lane)) ?? race.speedup(lane) ?? 0;
  const sound = all.filter((lane) => doubt(race, lane) === null);
  const rough = all.filter((lane) => hedged(doubt(race, lane)));
  const exact = rough.filter((lane) => lane.begin.lossless);
  const among = [sound, exact, rough].find((lanes) => lanes.length) ?? [null];
  return among.reduce((a, b) => (speed(b) > speed(a) ? b : a));
}

/** What drafts in a lane: a rule, such as lookup, is certain of everything it drafts. */
export const guesser = (lane) =>
  lane.rounds.some((round) => round.tree.draft_logp?.some((logp) => logp))
    ? W.headline.model
    : W.headline.rule;

/** Nodes of the sentence. waiting: what the machine is doing before the first words, or ''. */
export function headline(race, waiting) {
  if (waiting) return [waiting];
  const base = race.baseline;
  const all = race.list.filter((one) => one !== base);
  const winner = best(race);
  const lane = winner ?? all.find((one) => one === race.focused) ?? all[0];
  if (!lane || !base)
    return race.list.length ? [W.headline.alone(race.list.map((one) => one.title))] : [];
  if (!race.finished) {
    const speed = (one) => race.now(one).speed || 0;
    const leader = all.reduce((a, b) => (speed(b) > speed(a) ? b : a));
    const far = (one) => [race.now(one).tokens, race.over(one), one.tokens.length];
    const told = [leader.title, far(leader), far(base), all.length];
    const { head, length, slower } = race;
    if (race.back) return [W.player.back(slower), W.headline.back(...told)];
    const stretched = slower > 1 && W.player.slower(slower);
    const played = head !== null && W.player.took(fmt.seconds(length), stretched);
    return [played, W.headline.going(...told)].filter(Boolean);
  }
  const t = race.now(lane);
  const doubted = doubt(race, lane);
  if (doubted?.kind === 'cut') return [W.headline.cut];
  if (!race.meta.compared) return [`${W.run.uncompared}.`];
  if (!winner) return undecided(race, all);
  const rivals = all.filter((one) => one !== lane);
  const of = rivals.length ? W.headline.of(lane.title) : '';
  const differs = differences(race, lane);
  const quoted = differs && rivals.length < FEW;
  const x = race.speedup(lane);
  const time = !doubted
    ? W.headline.took(x, race.meta.compared.lanes[lane.name].speedup_total)
    : doubted.kind === 'short'
      ? W.headline.short(doubted)
      : hedged(doubted)
        ? W.headline.roughly(doubted)
        : W.headline.unknown(t.tau, doubted);
  const kept = lane.tokens.flatMap(({ origin }, i) => (origin === 'draft' ? [lane.said(i)] : []));
  const green = kept.some((text) => marked(text) !== ENDS);
  return [
    ...(green
      ? [h('span.tk.draft', W.headline.green), of, W.headline.guessed(guesser(lane))]
      : [W.headline[kept.length ? 'ended' : 'none'](guesser(lane), of)]),
    t.relaxed && '; ',
    t.relaxed && h('span.tk.relaxed', W.headline.relaxed(t.relaxed, t.tokens)),
    t.relaxed && W.headline.through(t.relaxed),
    W.headline.answer(!differs, lane.given.text),
    doubted ? time : h('b', time),
    rivals.length && !doubted && W.headline.fastest(rivals.length + 1),
    differs && race.meta.price
      ? W.headline.known(race.meta.price)
      : quoted
        ? W.headline.price(
            rivals.length ? lane.title : 'it',
            differs.changes.map((pair) => pair.map((text) => start(text))),
          )
        : '.',
    ...answers(race, differs && !quoted ? [lane, ...rivals] : rivals, differs),
  ].filter(Boolean);
}

/** Which lanes give the plain model's answer, and which do not. differs: whether the answer told of before does not. */
function answers(race, lanes, differs) {
  const names = (some) => some.map((one) => one.title);
  const apart = lanes.filter((one) => differences(race, one));
  const alike = lanes.filter((one) => !apart.includes(one));
  return [
    alike.length && W.headline.alike(names(alike), differs),
    apart.length && W.headline.apart(names(apart)),
  ];
}

/** Several lanes of which none can be said to have won: what they wrote with each check, and why no more. */
function undecided(race, lanes) {
  const later = lanes.filter((one) => W.headline.slower(doubt(race, one).about));
  return [
    W.headline.checks(lanes.map((one) => [one.title, race.now(one).tau])),
    ...doubts(race).map(([why]) => ` ${W.charts.noSpeedup(why)}`),
    later.length && W.headline.longer(later.map((one) => one.title)),
    ...answers(race, lanes, true),
  ].filter(Boolean);
}

/** The beginning of a piece of an answer. */
const start = (text) => (text.trim().length > 32 ? `${text.trim().slice(0, 31)}…` : text.trim());

/** A token worth looking at first: one that the target chose although the drafter found another
 *  likelier, else one that the target wrote where the drafter was surest of something else; null if
 *  nothing was drafted. */
export function instructive(lane) {
  let found = null;
  let most = 0.05;
  lane.rounds.forEach((round) => {
    const { parent, draft_logp: logp } = round.tree;
    if (!logp) return;
    const p = (i) => Math.exp(logp[i] ?? -Infinity);
    round.tokens.forEach((token, at) => {
      const stands = round.path[at];
      const taken = token.origin === 'draft' ? round.path[at + 1] : null;
      const rivals = parent.map((_, i) => i).filter((i) => parent[i] === stands && i !== taken);
      const rival = Math.max(0, ...rivals.map(p));
      const score =
        (rival - (taken ? p(taken) : 0)) *
        (taken ? 1 : 0.6) *
        (/[\p{L}\d]{3}/u.test(token.text) ? 1 : 0.3);
      if (score > most) [most, found] = [score, lane.at(round.index).tokens + at];
    });
  });
  return found;
}
