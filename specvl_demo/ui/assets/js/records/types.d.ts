/* What the page makes of records. Like all types of the page's data, these need no import. */

type Lane = import('./fold.js').Lane;
type Race = import('../state/race.js').Race;

type Phase = 'draft_s' | 'verify_s' | 'commit_s' | 'other_s';

/** A token at a place `at` of its round, in a piece of text once that is whole. */
interface PlacedToken extends Token {
  round: number;
  at: number;
  piece?: number;
}

/** Tokens [start, stop) that make whole characters. mixed: they have several origins. */
interface Piece {
  start: number;
  stop: number;
  text: string;
  origin: Token['origin'];
  mixed: boolean;
  round: number;
}

/** Why a token was written: 'accepted', 'relaxed', or the target's own. 'corrected': something else
 *  was drafted; 'bonus': all of it was accepted; 'alone': nothing was. */
type Reason = 'accepted' | 'relaxed' | 'corrected' | 'bonus' | 'alone';

/** Where a drafted node fell: `lost` is the one that the target turned down, itself or one before it; `at` the place
 *  in the round's tokens, which has no token if the answer had ended. */
interface Fall {
  lost: number;
  at: number;
}

/** Why a node is no token of the answer. at: the place in its round that the target filled
 *  otherwise, if it was this node's; else -1. */
interface Unused {
  kind: 'root' | 'rejected' | 'after' | 'ended';
  why: string;
  at: number;
}

/** How a sampled token was drawn: what target and drafter gave it, how close the second came, and
 *  how far the distributions overlap; null where unknown. */
interface Draw {
  target: number;
  drafter: number | null;
  gap: number | null;
  overlap: number | null;
}

/** Likely tokens, and their probability by the columns that know it: the target, or a view. */
interface LikelyTable {
  columns: string[];
  rows: (Omit<LikelyToken, 'prob'> & { prob: Map<string, number> })[];
}

/** A place in a drawn tree: row and depth. */
type Place = [number, number];
type Edge = [Place, Place];

/** A round's tree from its root down: how deep and how wide it is, and its edges; `kept` of them were
 *  accepted, of which `relaxed` are marked; in place of the `rejected` one the target wrote its own. */
interface Shape {
  deep: number;
  wide: number;
  idle: Edge[];
  kept: Edge[];
  relaxed: Edge[];
  rejected: Edge[];
}

/** Why a lane's speedup is doubtful: with `about` a rough one is shown, without it none. */
interface Doubtful {
  kind: 'cut' | 'short' | 'disturbed' | 'unknown' | 'early';
  sentence: string;
  tokens?: number | null;
  load?: number | null;
  about?: number | null;
}

/** Where a lane's answer differs from AR's: tokens before the first difference; those of AR, and of
 *  the lane, that the other one lacks; [AR's, the lane's] words, in order. */
interface Differences {
  shared: number;
  base: Set<number>;
  other: Set<number>;
  changes: [string, string][];
}

/** What a recorded lane says of its tokens and its costs, in autoregressive steps. */
interface Learned {
  n: number;
  /** hard[i]: a drafter of quality q guesses token i where hard[i] < q. */
  hard: number[];
  quality: number;
  /** Levels that a round drafts, at most, and tokens of each. */
  gamma: number;
  deepest: number;
  width: number;
  /** The cost of drafting a level, of a verification, of each drafted token in it, of the rest. */
  draft: number;
  step: number;
  row: number;
  rest: number;
  requests: number;
  /** Averages do not give the race again: what they miss of its tokens and its cost a round. */
  fit: { tau: number; cost: number; most: number };
  recorded: { tau: number; speedup: number; rounds: { kept: number }[] };
}
