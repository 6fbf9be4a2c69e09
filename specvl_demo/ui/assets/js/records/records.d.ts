/* What the engine records, made by tools/record_types.py: change records.py instead. */

type Scalar = boolean | number | string | null;
type Inner = boolean | number | string | Scalar[] | { [name: string]: Scalar } | null;
type Value = boolean | number | string | Inner[] | { [name: string]: Inner } | null;

type AnyRecord = Begin | Round | End | Remarks;

/**
 * The start of a lane. Its seconds are charged in full even if lanes shared the computation.
 *
 * versions: Of this package and its libraries; also the machine, and where known the commit and
 * the hashes of the loaded weights.
 * n_prompt: Positions of the prompt, those of the answer's prefix included.
 * exactness: One sentence on what a lossless lane guarantees here.
 * charts: The charts that its method declares.
 * prefix: What the answer had to begin with; the rounds' tokens follow it.
 * chosen: The values that settings "auto" have on this machine.
 */
interface Begin {
  kind: 'begin';
  request: string;
  lane: string;
  method: string;
  title: string;
  settings: { [name: string]: Value };
  lossless: boolean;
  pair: string;
  models: { [name: string]: string | null };
  sampling: { [name: string]: Value };
  max_new_tokens: number;
  dtype: string;
  device: string;
  versions: { [name: string]: string };
  prompt: string;
  n_prompt: number;
  n_visual: number;
  spans: Span[];
  vision_s: number;
  prefill_s: number;
  draft_prefill_s: number;
  seen?: ViewSeen[];
  charts?: Chart[];
  exactness?: string;
  notes?: AskedQuestion;
  prefix?: Prefix;
  chosen?: { [name: string]: Value };
  schema?: 1;
}

/**
 * Prompt positions [start, stop) of one picture or frame, laid out as rows x cols patches, None
 * if they form no grid.
 */
interface Span {
  kind: 'image' | 'video';
  media: number;
  frame: number;
  start: number;
  stop: number;
  rows?: number | null;
  cols?: number | null;
}

/**
 * What one view of the drafter saw at n positions.
 *
 * index: The prompt position of each, -1 for those that are not in the prompt, whose text is
 * `words`: a caption, a newline in place of a picture.
 */
interface ViewSeen {
  view: string;
  n: number;
  index: number[];
  words?: string;
}

/**
 * A chart over rounds that a method declares.
 *
 * kind: "trees" is the line below the small trees of all rounds, of its first series.
 * shade: What each round accepted, behind the lines.
 * tint: Each accepted word has the colour of the line of the view that gave it most probability,
 * weighted by the first series.
 * y_right: Of earlier versions; not drawn. Their kind "stack" is drawn as steps.
 */
interface Chart {
  id: string;
  title: string;
  help: string;
  kind: 'lines' | 'points' | 'stack' | 'steps' | 'trees';
  series: ChartSeries[];
  y: string;
  y_range?: [number, number] | null;
  y_right?: string | null;
  shade?: 'accepted' | null;
  tint?: 'views' | null;
}

/**
 * One or several lines of a chart.
 *
 * path: Dotted path inside a round, such as `notes.alpha`. A number gives one value per round; an
 * object of numbers gives a line for each key, named by it; a list gives a point for each entry.
 * nodes, mark: For a list, the paths of the tree nodes its entries stand for and of the nodes to
 * mark.
 * marked: Name of the marked nodes, which are drawn in the colour of relaxed tokens.
 * axis, beside: Of earlier versions; not drawn.
 */
interface ChartSeries {
  path: string;
  name: string;
  axis?: 'left' | 'right';
  nodes?: string | null;
  mark?: string | null;
  marked?: string;
  beside?: string;
}

/**
 * The question as the user asked it, without the template.
 *
 * remarks: What is wrong with a file that was read all the same, in sentences.
 */
interface AskedQuestion {
  question?: string;
  media?: Thumbnail[];
  remarks?: string[];
}

/** A picture or clip of the question as `data:` addresses, None for frames left out. */
interface Thumbnail {
  name: string;
  frames: (string | null)[];
}

/** The beginning of an answer that was given with the question, not decided by the target. */
interface Prefix {
  ids?: number[];
  text?: string;
}

/**
 * One draft, verify, commit.
 *
 * tokens: The emitted tokens, after cutting at the end of the answer.
 * path: Accepted nodes, root first, so len(path) == 1 + number of draft and relaxed tokens. Token
 * i was decided at node path[i]; a token that came from the draft is node path[i + 1].
 * candidates: For every token the target's likeliest, most probable first; None in light
 * recording.
 * views: The drafter's likeliest by view name, if it has views; one list per token, empty at nodes
 * that were not fed to the drafter.
 * clock_s: The lane's clock at the end of this round: the sum of all its rounds' seconds, no
 * prefill.
 * notes: Method-specific values by name. About once a second a race adds `load`, the share of all
 * cores that other programs have used so far.
 */
interface Round {
  kind: 'round';
  lane: string;
  index: number;
  tokens: Token[];
  tree: Tree;
  path: number[];
  draft_s: number;
  verify_s: number;
  commit_s: number;
  other_s: number;
  clock_s: number;
  candidates?: LikelyToken[][] | null;
  views?: { [name: string]: LikelyToken[][] } | null;
  notes?: { [name: string]: Value };
}

/** One emitted token; `text` is empty while a character is incomplete. */
interface Token {
  id: number;
  text: string;
  origin: 'draft' | 'relaxed' | 'target';
}

/**
 * The drafted tree of a round; node 0 is the root, the last token that was already decided.
 *
 * parent: Index of each node's parent, -1 for the root, always smaller than the node's own index.
 * draft_logp, target_logp: Of a node's token after its parent, None if not computed.
 */
interface Tree {
  tokens: number[];
  parent: number[];
  texts?: string[] | null;
  draft_logp?: (number | null)[] | null;
  target_logp?: (number | null)[] | null;
}

/** A likely token of the target (or of one view of the drafter), with its probability. */
interface LikelyToken {
  id: number;
  text: string;
  prob: number;
}

/**
 * The end of a lane.
 *
 * totals: The fold over the lane's rounds.
 * load: Share of all cores that other processes used while the race ran; None if not measured.
 * watching: Share of those that showed the race on the same machine, such as a browser; they are
 * not part of load.
 * again: Seconds of decoding the same answer again, unseen, because one that short cannot be timed
 * once.
 * confidence: None if nothing is known (see `report.confidence`).
 */
interface End {
  kind: 'end';
  lane: string;
  stop: 'cancelled' | 'eos' | 'error' | 'length' | 'stop';
  totals: Totals;
  peak_bytes?: number | null;
  message?: string | null;
  load?: number | null;
  confidence?: Confidence | null;
  watching?: number | null;
  again?: number[];
}

/** Sums over rounds, added up only by `fold`. */
interface Totals {
  n_tokens?: number;
  n_rounds?: number;
  n_accepted?: number;
  n_relaxed?: number;
  n_drafted?: number;
  draft_s?: number;
  verify_s?: number;
  commit_s?: number;
  other_s?: number;
}

/**
 * How sure the target is of a lane's answer.
 *
 * word: "fairly sure" was "sure" in older traces.
 * prob: The lowest probability that it gives to a token of the answer with a letter or digit.
 * right: Share of held-out answers of this word that were right.
 */
interface Confidence {
  word: 'fairly sure' | 'guessing' | 'sure' | 'unsure';
  prob: number;
  right: number;
}

/**
 * The last record of a race, which a trace need not store: it follows from the others.
 *
 * cut: Why there are no speedups, None if every lane was run to its end. lanes: By name.
 */
interface Remarks {
  kind: 'remarks';
  cut: string | null;
  lanes: { [name: string]: LaneRemarks };
}

/**
 * How a lane compares with AR; None for what AR itself, or a race without AR, does not have.
 *
 * doubt: Why its times are only rough. why: See `Comparison.why_this_speed`. speedup_total: With
 * vision and prefill, of answers of one length: in a longer one these count for less. changes: See
 * `find_changes`. accepted_by_depth: Of every lane, see `metrics.accepted_by_depth`; of few
 * drafts, if no depth has more. repeats: See `repetition_sentence`.
 */
interface LaneRemarks {
  agreement?: Agreement | null;
  doubt?: Doubt | null;
  why?: string | null;
  speedup_total?: number | null;
  changes?: [number, number, number, number][] | null;
  accepted_by_depth?: number[];
  repeats?: string | null;
}

/**
 * How a lane's answer compares with AR's.
 *
 * Attributes:
 * kind: "same": token for token. "so_far": one was stopped, and what both have is the same.
 * "tie": a lossless lane's first difference is due to rounding. "differs" otherwise.
 * at: The first token that differs, else the number of tokens in common.
 * gap: By how many nats the target preferred AR's token there, including the noise of the draw
 * when sampling; None if not recorded.
 * alike: For two complete answers, the share of tokens that agree once they are aligned, else
 * None.
 * dtype: Of a tie, the precision whose rounding decided.
 */
interface Agreement {
  kind: 'differs' | 'same' | 'so_far' | 'tie';
  at: number;
  gap?: number | null;
  alike?: number | null;
  dtype?: string | null;
}

/**
 * Why the times of a lane are only rough: a `sentence` without capital letter and full stop.
 *
 * tokens: How many both lanes have, if only these are too few. load: Of disturbed ones, what other
 * programs, or the browser that showed the race, used. about: The speedup that is told all the
 * same, as a rough one and with the reason; None where nothing was measured.
 */
interface Doubt {
  kind: 'disturbed' | 'short';
  sentence: string;
  tokens?: number | null;
  load?: number | null;
  about?: number | null;
}
