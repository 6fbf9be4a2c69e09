/* A race simulated from a recorded one: the same answer, its tokens as hard to guess, with another drafter, draft
   length and costs, in AR steps. */

import { chance, children, countDrafted, depths } from './fold.js';

/** What a lane says of its tokens and its costs; null if it drafted nothing. @returns {Learned | null} */
export function learn(lane, base) {
  const rounds = lane.rounds.filter(countDrafted);
  const b = base?.totalsAfter(Infinity);
  if (!rounds.length || !b?.n_rounds) return null;
  const t = lane.totalsAfter(Infinity);
  const unit = b.clock_s / b.n_rounds;
  const verdicts = lane.tokens.map((token) => verdict(lane.rounds[token.round], token.at));
  const known = verdicts.filter(({ right }) => right !== null);
  if (!known.length) return null;
  const quality = known.filter(({ right }) => right).length / known.length;
  const levels = rounds.map((r) => Math.max(...depths(r.tree)));
  const gamma = Math.max(1, Math.round(mean(levels)));
  const nodes = mean(rounds.map(countDrafted));
  const verify = t.verify_s / t.n_rounds / unit;
  const row = Math.max(0, verify - 1) / Math.max(1, nodes);
  const rest = (t.commit_s + t.other_s) / t.n_rounds / unit;
  const all = {
    n: lane.tokens.length,
    hard: hardness(verdicts, quality),
    quality,
    gamma,
    deepest: Math.max(...levels),
    width: nodes / gamma,
    draft: t.draft_s / t.n_rounds / unit / gamma,
    step: Math.min(1, verify),
    row,
    rest,
    requests: 1,
    fit: { tau: 1, cost: 0, most: 1 },
    recorded: {
      tau: t.tau,
      speedup: t.tokens_per_s / b.tokens_per_s,
      rounds: lane.rounds.map((r) => ({ kept: r.tokens.length - 1 })),
    },
  };
  const bare = simulate(all, all);
  all.fit = {
    tau: t.tau / bare.tau,
    cost: (t.tau * b.tokens_per_s) / t.tokens_per_s - bare.cost,
    most: Math.max(1, t.tau / (gamma + 1)),
  };
  return all;
}

/** Whether the drafter's token was kept (null: it never guessed), and how sure it was. */
function verdict(round, at) {
  const token = round.tokens[at];
  /** How sure the drafter was of a node. */
  const p = (i) => chance(round.tree.draft_logp, i) ?? 0.5;
  if (token.origin !== 'target') return { right: true, sure: p(round.path[at + 1]) };
  const rivals = children(round.tree)[round.path[at]];
  return rivals.length
    ? { right: false, sure: Math.max(...rivals.map(p)) }
    : { right: null, sure: 0.5 };
}

/** How hard every token is to guess, 0 to 1. Tokens that were guessed lie below `quality`, the surest lowest; others
 *  above, those where the drafter was surest of something else highest; the rest are spread over all. */
function hardness(verdicts, quality) {
  const hard = new Array(verdicts.length);
  /** Spread tokens evenly between two values. */
  const place = (list, low, high) =>
    list.forEach(([i], k) => {
      hard[i] = low + ((k + 0.5) / list.length) * (high - low);
    });
  const all = verdicts.map((v, i) => [i, v]);
  /** Tokens with this verdict: the surest last, first where `way` is -1, as they came where it is 0. */
  const those = (right, way) =>
    all.filter(([, v]) => v.right === right).sort((a, b) => way * (a[1].sure - b[1].sure));
  place(those(true, -1), 0, quality);
  place(those(false, 1), quality, 1);
  // The golden ratio's multiples fall evenly, and the same every time.
  those(null, 0).forEach(([i], k) => {
    hard[i] = ((k + 1) * 0.618034) % 1;
  });
  return hard;
}

/** The race with these values. */
export function simulate(known, { quality, gamma, draft, row, requests }) {
  const { n, hard, width, rest, step, fit } = known;
  const rounds = [];
  // Requests at once share every pass; each adds its rows to the target's, one to a plain step. A drafter's pass is
  // taken to grow as a plain step does.
  const plain = 1 + row * (requests - 1);
  const checked = step + row * (gamma * width * requests + requests - 1) + rest + fit.cost;
  const cost = gamma * draft + checked / plain;
  let at = 0;
  while (at < n) {
    let kept = 0;
    while (kept < gamma && at + kept < n - 1 && hard[at + kept] < quality) kept += 1;
    at += kept + 1;
    rounds.push({ kept, at });
  }
  // A better drafter comes nearer to whole drafts, whose lengths may have varied. Every round writes the target's own
  // token at least, and its drafts at most.
  const better = Math.max(0, (quality - known.quality) / (1 - known.quality || 1));
  const scale = Math.max(fit.tau, fit.tau + better * (1 - fit.tau));
  const tau = Math.max(1, Math.min((scale * n) / rounds.length, (gamma + 1) * fit.most));
  return { tau, cost, speedup: tau / cost, verify: cost - gamma * draft, rounds };
}

/** What rounds and drafted tokens cost a lane, and what that gains. */
export function payOff(lane, base) {
  const { clock_s, n_drafted, n_rounds: n, tau } = lane.totalsAfter(Infinity);
  const { stretch } = lane;
  const unit = base.clock_s / base.n_rounds;
  if (!n_drafted || !(unit > 0)) return null;
  const rho = clock_s / n / unit;
  // Drafting, and what verification takes beyond an autoregressive step.
  const seconds = lane.rounds.map(
    (r) => stretch * r.draft_s + Math.max(0, stretch * r.verify_s - unit),
  );
  const drafted = n_drafted / n;
  const perToken = mean(seconds) / drafted / unit;
  return { fixed: rho - perToken * drafted, perToken, drafted, tau, rho };
}

/** The least share of kept guesses that is as fast as autoregressive decoding. */
export function breakEven(known) {
  const shares = Array.from({ length: 101 }, (_, i) => i / 100);
  return shares.find((quality) => simulate(known, { ...known, quality }).speedup >= 1) ?? null;
}

const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
