/* Why SAGE did not draft the tree that it asked for, from the round's notes: see methods/sage.py. */

import { W } from './words.js';

const AT_ROOT = 1.5; // the root may have W · (0.5 + 1) children (equation 12)

/** Sentences by the name of the note that they explain; none for rounds of other methods. */
export function unasked(lane, notes) {
  const { depth, width, drafted_depth: levels, drafted_width: widest } = notes;
  if (![depth, width, levels, widest].every(Number.isFinite)) return {};
  const round = lane.rounds.find((one) => one.notes === notes);
  const room = lane.begin.max_new_tokens - lane.at(round.index).tokens - 1;
  const full = notes.n_nodes >= lane.begin.settings.max_nodes;
  const fewer = full ? W.shape.full : W.shape.unlikely;
  const first = Math.max(1, Math.floor(AT_ROOT * width + 1e-9));
  const narrower = widest === first ? W.shape.rounded : fewer;
  const siblings = round.tree.parent.filter((above) => above === 0).length;
  const wider = siblings === widest ? W.shape.root : W.shape.several;
  return {
    ...(levels < depth && { drafted_depth: levels === room ? W.shape.room : fewer }),
    ...(widest !== width && { drafted_width: widest < width ? narrower : wider }),
  };
}
