/* Folds over the records of a race: the sums of `records.fold` after every round. */

import { ENDS, laid } from './text.js';

/** @type {Phase[]} */
export const PHASES = ['draft_s', 'verify_s', 'commit_s', 'other_s'];

/** Under the record's names, and the lane's clock. */
const ZERO = {
  n_tokens: 0,
  n_rounds: 0,
  n_accepted: 0,
  n_relaxed: 0,
  n_drafted: 0,
  draft_s: 0,
  verify_s: 0,
  commit_s: 0,
  other_s: 0,
  clock_s: 0,
};

/** @param {typeof ZERO} totals @param {Round} round */
function plus(totals, round) {
  /** @param {Token['origin']} origin */
  const count = (origin) => round.tokens.filter((token) => token.origin === origin).length;
  const sums = {
    ...totals,
    n_tokens: totals.n_tokens + round.tokens.length,
    n_rounds: totals.n_rounds + 1,
    n_accepted: totals.n_accepted + round.tokens.length - count('target'),
    n_relaxed: totals.n_relaxed + count('relaxed'),
    n_drafted: totals.n_drafted + countDrafted(round),
    clock_s: round.clock_s,
  };
  for (const phase of PHASES) sums[phase] += round[phase];
  return sums;
}

/** What could change the answer most comes first, as in `report.metrics`. @type {Token['origin'][]} */
const RANK = ['relaxed', 'target', 'draft'];

/** A lane: its records, totals after every round, text in pieces. */
export class Lane {
  /** @type {Round[]} */
  rounds = [];
  /** @type {PlacedToken[]} */
  tokens = [];
  totals = [{ ...ZERO }]; // totals[k]: after k rounds
  /** @type {Piece[]} */
  pieces = [];
  whole = [0]; // whole[k]: complete pieces after k rounds
  waiting = 0; // tokens at the end that make no whole character yet
  /** @type {End | null} */
  end = null;
  // Set by the race. pending: its Begin has not come.
  number = 0;
  title = '';
  colour = 0;
  pending = false;

  /** @param {Begin} begin */
  constructor(begin) {
    this.begin = begin;
    this.name = begin.lane;
  }

  /** @param {Round} round */
  add(round) {
    round.tokens.forEach((token, at) => {
      this.tokens.push({ ...token, round: round.index, at });
      this.waiting += 1;
      if (token.text) this.join(token.text);
    });
    this.rounds.push(round);
    this.totals.push(plus(this.totals.at(-1), round));
    this.whole.push(this.pieces.length);
  }

  /** Whether this is AR. */
  get plain() {
    return this.begin.method === 'ar';
  }

  /** What a token's colour stands for. @param {Pick<Token, 'origin'>} token */
  kind({ origin }) {
    return this.plain ? 'ar' : origin;
  }

  /** Where a round's first token is in the answer. @param {Round} round */
  first({ index }) {
    return this.totalsAfter(index).n_tokens;
  }

  /** A token's text, or the end mark. @param {number} index */
  said(index) {
    const ends = this.end?.stop === 'eos' && index === this.tokens.length - 1;
    return this.tokens[index].text || (ends ? ENDS : '');
  }

  /** Whether the answer ended by itself. */
  get complete() {
    return ['eos', 'stop', 'length'].includes(this.end?.stop ?? '');
  }

  /** @param {End} end */
  close(end) {
    this.end = end;
    // One clock everywhere: the mean timing's.
    const { stretch } = this;
    for (const t of this.totals) {
      t.clock_s *= stretch;
      for (const phase of PHASES) t[phase] *= stretch;
    }
    if (!this.waiting) return;
    this.join(''); // the end of the answer, or a character that never became whole
    this.whole[this.whole.length - 1] = this.pieces.length;
  }

  /** Make the waiting tokens, which complete `text`, one piece. @param {string} text */
  join(text) {
    const stop = this.tokens.length;
    const start = stop - this.waiting;
    const parts = this.tokens.slice(start, stop);
    for (const token of parts) token.piece = this.pieces.length;
    const kinds = new Set(parts.map((token) => token.origin));
    this.pieces.push({
      start,
      stop,
      text,
      origin: RANK.find((kind) => kinds.has(kind)) ?? 'target',
      mixed: kinds.size > 1,
      round: parts.at(-1).round,
    });
    this.waiting = 0;
  }

  /** The mean of all timings over the recorded one. */
  get stretch() {
    const all = this.timings;
    return all.reduce((a, b) => a + b) / all.length / all[0] || 1;
  }

  /** Seconds of every decoding of the answer. */
  get timings() {
    return [this.rounds.at(-1)?.clock_s ?? 0, ...(this.end?.again ?? [])];
  }

  /** Seconds before the first round. */
  get before() {
    return this.begin.vision_s + this.begin.prefill_s + this.begin.draft_prefill_s;
  }

  /** Totals after k rounds. @param {number} k */
  totalsAfter(k) {
    const t = this.totals[Math.min(k, this.rounds.length)];
    return {
      ...t,
      tau: t.n_rounds ? t.n_tokens / t.n_rounds : null,
      tokens_per_s: t.clock_s > 0 ? t.n_tokens / t.clock_s : null,
    };
  }

  /** How many rounds were over at a time of the lane's clock. @param {number} seconds */
  roundsBy(seconds) {
    return Math.max(
      0,
      this.totals.findLastIndex(({ clock_s }) => clock_s <= seconds + 1e-9),
    );
  }

  get text() {
    return wordsOf(this.tokens);
  }

  /** The text with what was given. */
  get answer() {
    return this.given.text + this.text;
  }

  /** The beginning that the answer had to have. */
  get given() {
    return { ids: [], text: '', ...this.begin.prefix };
  }

  /** The text as pages can lay it out. */
  get laid() {
    return this.pieces.map((piece) => laid(piece.text)).join('');
  }
}

/** @param {Token[]} tokens */
export const wordsOf = (tokens) => tokens.map(({ text }) => text).join('');

/** @param {Round} round */
export const countDrafted = ({ tree }) => tree.tokens.length - 1;

/** @param {Round} round */
export const countKept = ({ path }) => path.length - 1;

/** The depth of every node. @param {Tree} tree */
export function depths(tree) {
  /** @type {number[]} */
  const depth = [];
  for (const p of tree.parent) depth.push(p < 0 ? 0 : depth[p] + 1);
  return depth;
}

/** The children of every node, likeliest first where that is known. @param {Tree} tree */
export function children(tree) {
  /** @type {number[][]} */
  const kids = tree.parent.map(() => []);
  tree.parent.forEach((p, i) => {
    if (p >= 0) kids[p].push(i);
  });
  /** @param {number} node */
  const likely = (node) => chance(tree.draft_logp, node) ?? 0;
  for (const list of kids) list.sort((a, b) => likely(b) - likely(a));
  return kids;
}

/** The probability of a node; null where it is unknown. @param {(number | null)[] | null | undefined} logp
 *  @param {number} node */
export const chance = (logp, node) => (logp?.[node] == null ? null : Math.exp(logp[node]));

/** The nodes after which nothing was drafted. @param {Tree} tree */
export const leaves = ({ parent }) => [...parent.keys()].filter((i) => !parent.includes(i));

/** The drafter's best continuation that was rejected; none if the target added no token.
 *  @param {Round} round @returns {number[]} */
export function rejected(round) {
  if (round.tokens.at(-1).origin !== 'target') return [];
  const kids = children(round.tree);
  const out = [];
  for (let [node] = kids[round.path.at(-1)]; node !== undefined; [node] = kids[node])
    out.push(node);
  return out;
}

/** Where a rejected node fell. @param {Round} round @param {number} node @returns {Fall} */
export function fallen({ tree, path }, node) {
  let lost = node;
  while (!path.includes(tree.parent[lost])) lost = tree.parent[lost];
  return { lost, at: path.indexOf(tree.parent[lost]) };
}

/** Why a token was written. @param {Round} round @param {number} at @returns {Reason} */
export function reason(round, at) {
  const token = round.tokens[at];
  if (token.origin === 'draft') return 'accepted';
  if (token.origin === 'relaxed') return 'relaxed';
  if (round.tree.tokens.length === 1) return 'alone';
  return rejected(round).length ? 'corrected' : 'bonus';
}

/** A lane's running speedup: how long AR took for as many tokens, over this lane's time.
 *  @param {Lane} lane @param {Lane} base @param {number} k */
export function speedupByToken(lane, base, k) {
  const t = lane.totalsAfter(k);
  const b = base.totalsAfter(t.n_tokens); // a round of AR writes one token
  return t.tokens_per_s && b.tokens_per_s ? t.tokens_per_s / b.tokens_per_s : null;
}

/** The value at a dotted path, such as `notes.weights.text`. */
export const dig = (value, path) => path.split('.').reduce((part, key) => part?.[key], value);
