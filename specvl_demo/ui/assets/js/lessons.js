/* The lessons: for every method the idea, the rule that decides, what to look for, where it stands. Words and formulas
   only; the pictures are in diagrams.js. A formula is [expression, how it reads aloud]. */

const s = (a, b) => ['sub', a, b];

export const LESSONS = {
  ar: {
    idea: 'The target writes one token, reads it back, writes the next. Each token costs a full pass over all its weights, and on most machines moving those weights is what takes the time: the arithmetic units wait. A pass over six tokens costs little more than a pass over one. Every other method here lives from that.',
    formula: [[s('y', 't'), '=', 'argmax', s('p', 'target'), ['text', '( · | '], s('y', ['<', 't']), ['text', ' )']], 'the next token is the target’s likeliest'],
    look: 'One node per tree, one token per round, τ = 1. Its speed is the measure for all others: same model, same loop, same kernels.',
    source: null,
  },
  chain: {
    idea: 'A small model guesses the next few tokens in a row. The target reads them all in one pass and says at each place what it would have written. Guesses are kept up to the first that differs; there the target’s own token stands. The answer is exactly the target’s, for every temperature.',
    formula: [['S', '=', ['frac', 'τ', [s('ρ', 'draft'), '+', s('ρ', 'verify')]], '≤', 'τ'], 'speedup equals tau over the cost of drafting and verifying, at most tau'],
    look: 'Five nodes in a line. Where the text follows from its own words, long green runs; where the picture decides, short ones. Too large a γ pays for guesses that fall with the first wrong one.',
    source: ['Leviathan et al. 2022; Gagrani et al. 2024', 'https://arxiv.org/abs/2404.08856'],
  },
  tree: {
    idea: 'One line of guesses dies with its first mistake. A tree keeps second and third choices open: all branches are checked in the same pass, each seeing only its own ancestors. The shape is fixed, found once on other texts.',
    formula: [['S', '=', ['frac', ['τ', '(', 'T', ')'], [s('ρ', 'draft'), '+', s('ρ', 'verify'), '(', 'T', ')']]], 'speedup of a tree with T nodes'],
    look: 'Which branch survives: mostly the first, sometimes the second. On a GPU more nodes are nearly free; on a CPU every node costs, and a chain may win.',
    source: ['Li et al. 2024, EAGLE', 'https://arxiv.org/abs/2401.15077'],
  },
  ngram: {
    idea: 'No drafter at all: find where the last words occurred before, in the question or in the answer, and guess that what followed then follows again. It costs nothing, so every hit is a gift.',
    formula: [[s('d', 'i'), '=', s('x', ['j', '+', 'i']), ['text', '  where '], s('x', ['j', '-', 'n', '…', 'j']), '=', s('y', ['t', '-', 'n', '…', 't'])], 'drafted tokens copy what followed the same n-gram'],
    look: 'Nothing is drafted until the answer begins to repeat itself; then whole phrases come at once. It shows how much of an answer is repetition.',
    source: ['Saxena 2023, prompt lookup decoding', 'https://github.com/apoorvumang/prompt-lookup-decoding'],
  },
  specvlm: {
    idea: 'Most of a clip’s tokens say the same again. The drafter gets a tenth of them: those the target attends to while it reads the question, and some evenly spaced ones for the rest. It drafts faster and hardly worse.',
    formula: [['keep', '=', ['text', 'top-attended (share 0.4)'], '∪', ['text', 'evenly spaced']], 'kept tokens are the best attended ones and evenly spaced ones'],
    look: 'Over the picture, the patches that stay. Where acceptance falls, see whether the thing asked about is among them.',
    source: ['Ji et al. 2025, SpecVLM', 'https://arxiv.org/abs/2508.16201'],
  },
  tabed: {
    idea: 'A small model that sees the picture is sometimes worse than the same model that does not: which one helps changes within one answer. TABED drafts with all its views in one batch, mixes their probabilities, and learns from every verified token how much each view should count.',
    formula: [['q', '=', ['sum', 'i', ''], s('w', 'i'), ['sup', 'q', ['(', 'i', ')']], ['text', ',   w = argmax of past matches, then least KL( p ‖ '], s('q', 'w'), ['text', ' )']], 'the mixture of the views with weights that would have matched the target most often so far'],
    look: 'The weights over the rounds, with the kept drafts behind them. Text-only rises where words follow from words, the picture where a colour or a place is due.',
    source: ['Lee et al. 2026, TABED', 'https://arxiv.org/abs/2601.20357'],
  },
  sage: {
    idea: 'A sure drafter should guess far ahead, a lost one should guess broadly. SAGE measures how sure the drafter is by the entropy of its ten likeliest tokens, and shapes the next tree by it: deep and thin, or shallow and wide.',
    formula: [['α', '=', '1', '-', ['frac', ['H', '(', 'P', ')'], ['log', 'k']], ',', ['text', '   D = '], s('D', 'min'), '+', 'α', '(', s('D', 'max'), '-', s('D', 'min'), ')'], 'alpha is one minus entropy over log k; depth grows with alpha'],
    look: 'α with depth and width: depth follows it, width opposes it. In the tree a sure round is a rope, a lost one a fan.',
    source: ['Tong et al. 2026, SAGE', 'https://arxiv.org/abs/2602.00523'],
  },
  lvspec: {
    idea: 'Most words of a description have little to do with the picture: “there is”, “at the”. Those need not match to the letter. LVSpec measures for each drafted token how close the target’s state at it comes to the picture’s states, and lets the least visual ones through. The answer may differ from the target’s.',
    formula: [[s('A', 'k'), '=', ['frac', '1', 'N'], ['sum', ['text', 'top N'], ''], 'cos', '(', s('h', 'k'), ',', s('v', 'j'), ')'], 'relevance is the mean of the N largest cosines between the token’s state and the patches’ states'],
    look: 'Relevance of every drafted token with λ’s cut: colours, shapes and places should stand above, “there” and “is” below. Relaxed tokens are marked in the text and counted.',
    source: ['Ji et al. 2026, LVSpec', 'https://arxiv.org/abs/2604.05650'],
  },
  fly: {
    idea: 'A token may differ where the target itself hesitates, if both agree again right after: then it was a matter of wording. Where the target is sure, a difference is a mistake and is turned down. The answer may differ from the target’s.',
    formula: [['H', '=', '-', ['sum', ['text', 'top 3'], ''], 'p', 'ln', 'p', '≥', ['text', 'gate,  and the next W−1 tokens match']], 'a mismatch passes where the entropy is at least the gate and the following tokens match'],
    look: 'The target’s entropy at each drafted token, and the gate: relaxed tokens can only lie above it.',
    source: ['Li et al. 2025, FLy', 'https://arxiv.org/abs/2511.22972'],
  },
  eagle2: {
    idea: 'The drafter is a single layer that continues the target’s own hidden states, which know more than words. Its tree grows where it is most confident: at each level the likeliest paths are expanded, at the end the best nodes of all are kept.',
    formula: [['V', '(', 'node', ')', '=', ['sum', ['text', 'path'], ''], 'log', 'q'], 'a node’s value is the sum of log-probabilities along its path'],
    look: 'Trees whose shape follows the text. Acceptance by depth stays high longer than a small model’s, since the head has seen what the target saw.',
    source: ['Li et al. 2024, EAGLE-2', 'https://arxiv.org/abs/2406.16858'],
  },
  hivis: {
    idea: 'The target’s hidden states at the words have already looked at the picture. So the drafter need not: HiViS hides every visual token from it and gives it the words, the target’s states, and an embedding that tells how many steps it has been on its own.',
    formula: [['x', '=', 'W', '[', s('e', ['t', '+', '1']), '‖', s('f', 't'), '‖', s('r', 's'), ']'], 'the input is a projection of the next token’s embedding, the target’s feature and a step embedding'],
    look: 'The drafter’s prompt is a few dozen tokens however large the picture. Watch whether colours and places are still guessed: the states carry them.',
    source: ['HiViS 2025', 'https://arxiv.org/abs/2509.23928'],
  },
  dream: {
    idea: 'A head of three blocks; the middle one looks across at features from inside the target, from the layer whose attention is most focused, over the visual tokens the target found worth attending to.',
    formula: [['L', '=', '0.2', s('L', 'out'), '+', '0.2', s('L', 'mid'), '+', 'KL', '(', 'p', '‖', 'q', ')'], 'trained on output features, intermediate features and the divergence of the distributions'],
    look: 'Which patches stay after compression, and how acceptance falls when the cross-attention is taken away.',
    source: ['DREAM 2025', 'https://arxiv.org/abs/2505.19201'],
  },
  custom: {
    idea: 'A method is a drafter, the views through which it sees the prompt, a shape for what it drafts, and a verifier. Any combination that makes sense runs: TABED’s mixture in SAGE’s tree, a fixed tree with loose verification. What does not fit together is refused with the reason.',
    formula: null,
    look: 'Which part makes the difference: change one menu at a time and race the two against each other.',
    source: null,
  },
};
