/* Every word of What if; see words.js. */

import { fmt } from './words.js';

export const WHATIF = {
  title: 'What if the drafter were different?',
  reset: 'As recorded',
  help: 'The answer stays the same: from the recorded guesses, how sure they were, and costs, your browser simulates the race.',
  ar: 'Autoregressive',
  recorded: (title) => `${title}, recorded`,
  simulated: 'Simulated',
  steps: (x) => `${x} steps`,
  was: (x) => `recorded: ${x}`,
  same: (s) => `As recorded: ${s}×.`,
  costs: (c) => [
    `As recorded, a round has a fixed cost of ${c.fixed.toFixed(2)} autoregressive steps, plus ${c.perToken.toFixed(3)} for each of the ${c.drafted.toFixed(1)} tokens that it drafts on ${c.gamma} levels: ${c.rho.toFixed(2)} in total (mean of all timings). It yielded ${c.tau.toFixed(2)} tokens.`,
    c.even === null
      ? 'At these costs it would be no faster than autoregressive decoding even if every guess were kept.'
      : `It breaks even at ${fmt.percent(c.even)} kept guesses, of those checked.`,
  ],
  other: (s, r) =>
    `With these values the answer would come ${s}× as fast as autoregressive decoding; measured: ${r}×.`,
  unsure: (s, why, as) =>
    `${why} ${as ? 'The figures as they stand' : 'With these values the figures'} would make ${s}×.`,
  formula: (f) => `speedup = τ / (v + γ c) = ${f.tau} / (${f.v} + ${f.gamma} × ${f.c}) = ${f.s}`,
  beyond: (deepest) =>
    `Drafts of more than ${deepest} levels, dotted, were not recorded: extrapolated.`,
  curve: 'Speedup by draft length',
  length: 'draft length γ',
  curveSay: (gamma, s) => `${WHATIF.curve}: ${s} times at ${gamma}.`,
  roundsSay: (n) => `${n} rounds; green is guessed, blue written by the large model.`,
  sliders: {
    quality: [
      'Kept guesses, of those checked',
      'Of the guesses up to the first rejected one, the share that was kept or relaxed.',
    ],
    gamma: ['Draft length γ', 'How many tokens a round guesses, one after another.'],
    draft: [
      'Drafter cost c',
      'The cost of one guessed token (one level of a tree), in autoregressive steps.',
    ],
    row: [
      'Verification cost per token',
      'What each guessed token adds to the pass that checks it, in autoregressive steps: little on a GPU, more on a CPU.',
    ],
    requests: [
      'Requests at once',
      'How many answers share a pass. Each adds its drafts to a verification, but one token to a plain step: speculation gains less.',
    ],
  },
};
