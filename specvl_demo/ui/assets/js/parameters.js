/* What the parameters of methods, their choices and the parts of a method are called; others go by their own names. */

export const PARAMS = {
  gamma: 'draft length γ', draws: 'drafted at a temperature', nodes: 'tree nodes', width: 'branches a level', loops: 'tree levels',
  beams: 'branches kept a level', count: 'branches', loose: 'loosened share λ', anchors: 'visual tokens compared N', shift: 'position shift',
  gate: 'entropy gate (nats)', window: 'agreement window W', drop_image: 'left out of a picture', drop_video: 'left out of a clip',
  guided: 'keep what is attended to', share: 'attention to keep', positions: 'position numbers', weights: 'weight rule',
  history: 'tokens remembered', grid_steps: 'grid steps', boost: 'boosting factor C', pool: 'pooled patches a side', min_depth: 'least depth',
  max_depth: 'greatest depth', min_width: 'least width', max_width: 'greatest width', top_k: 'top-k of the entropy', max_nodes: 'most nodes',
  growth: 'tree growth', confidence: 'confidence read at', immediate: 'confidence of this round', order: 'pruning order',
  track: 'rounds behind the depth limit', lower: 'lower its limit below', upper: 'raise its limit above', first: 'first tree',
  keep: 'visual tokens kept', ancestry: 'branches kept apart', longest: 'longest match',
  shortest: 'shortest match', draft_vocab: 'tokens the drafter can say', pictures: 'what stands for pictures', ahead: 'tokens looked up ahead',
  occurred: 'longest match',
};

export const CHOICES = {
  confidence: { root: 'the root', accepted: 'last accepted node', mean: 'all nodes' },
  order: { 'best-first': 'improbable paths', 'depth-first': 'last of a walk' },
  first: { static: 'the static one', entropy: 'grown' },
  positions: { auto: 'as suits the decoder', original: 'with gaps', compact: 'numbered anew' },
  weights: {
    'w-grid': 'grid search', kld: 'inverse KL', 'kld-softmax': 'softmax of KL', tvd: 'total variation', 'block-efficiency': 'count of matches',
    adaboost: 'boosting', uniform: 'equal',
  },
  draws: { shared: 'target’s draw', gumbel: 'Gumbel noise', argmax: 'likeliest token' },
  preset: {
    paper: 'the paper', 'paper-mtcp': 'the paper, four views', 'paper-tree-2': 'the paper, tree of width 2',
    'paper-tree-3': 'the paper, tree of width 3', 'paper-3b': 'the paper, 3B drafter', 'paper-no-shift': 'the paper, no position shift',
    'paper-branches': 'the paper, two branches', 'paper-self': 'the paper, self-drafting',
    'gate-only': 'entropy gate alone', 'published-code': 'the published code', pocket: 'tuned on the pocket pair',
    'pocket-tree': 'the same, with a tree', 'pocket-mtcp': 'the same, four views', photo: 'tuned on the photo pair',
  },
};

export const SLOTS = {
  drafter: ['drafter', 'Who guesses what comes next.'],
  views: ['views', 'What the drafter sees of the prompt; several are mixed.'],
  policy: ['tree', 'The shape of what is drafted in a round.'],
  verifier: ['verifier', 'Who decides which drafts stay.'],
};
