/* Every word of Compare; see words.js. */

import { W, count } from './words.js';

/** A rough time in words. */
const about = (seconds) =>
  seconds < 90 ? `about ${Math.ceil(seconds)} s` : `about ${Math.ceil(seconds / 60)} min`;

export const COMPARE = {
  inputs: 'Questions',
  source: 'What is asked',
  sources: {
    shipped: 'Held-out questions of the pair',
    files: 'My own questions and pictures',
    form: 'The question in the form',
  },
  files: 'Add pictures or clips',
  folder: 'Add a folder',
  clear: 'Take all away',
  listed: (names, left, questions) =>
    `${count(names.length, 'file')}${names.length ? `: ${names.slice(0, 5).join(', ')}${names.length > 5 ? ', …' : ''}; ${count(questions, 'question')}` : ''}${left ? `; ${left} of another kind left out` : ''}`,
  question: 'Ask of each of them',
  fields: {
    questions: 'Maximum questions',
    repeats: 'Repeats',
    tokens: 'Maximum tokens per answer',
    temperature: 'Temperature',
  },
  run: 'Compare',
  goOn: 'Go on',
  progress: 'Progress of the comparison',
  noMethod: 'Choose at least one method.',
  noFile: 'Add questions or pictures first.',
  noQuestion: 'The form in Race is empty: ask something there first.',
  sending: 'Sending the questions.',
  notSent: 'The questions could not be sent. Try again.',
  notOpened: 'The race could not be opened. Try again.',
  notSaved: 'The files could not be made. Try again.',
  cost: ({ answers, tokens, seconds }) =>
    seconds
      ? `${count(answers, 'answer')}: ${about(seconds)} if each has ${tokens} tokens, at the last speed seen here.`
      : `${count(answers, 'answer')}; a first run tells how long they take.`,
  more: 'More tables',
  asking: (i, { questions, repeats }, left) => {
    const again = repeats > 1 ? `, repeat ${Math.floor(i / questions) + 1} of ${repeats}` : '';
    const rest = `${questions * repeats - i} to go${left === null ? '' : `, ${about(left)}`}`;
    return `Question ${(i % questions) + 1} of ${questions}${again}: ${rest}.`;
  },
  stopping: 'Stopping: what is being computed ends first…',
  stopped: 'Stopped. The tables hold what was finished.',
  stoppedEmpty: 'Stopped before a question was finished: there are no tables.',
  left: (kept) =>
    kept
      ? 'The comparison stopped when the page was left. What was finished is kept; Go on asks the rest.'
      : 'The comparison that ran when the page was left was not kept.',
  done: ({ questions, repeats }) =>
    `Done: ${count(questions, 'question')}${repeats > 1 ? `, each asked ${repeats} times` : ''}.`,
  empty: 'Every method answers by itself.',
  recorded: ({ when = '' }, pair) => `Recorded ${String(when).slice(0, 10)} · ${pair}`,
  save: 'Tables, JSON, own traces',
  figure: { svg: 'Figure (SVG)', pdf: W.run.saveAs.pdf },
  unrecorded: 'No such race is recorded: Run asks this with this method.',
  about: (pair, settings) =>
    `Asked of ${pair}, the pair chosen in Race, with ${settings.length ? `what was changed there: ${settings.join('; ')}` : 'its own settings'}. Drop a saved bench.json to open it.`,
  form: 'Or add a .jsonl file and its pictures. A line is {"question": "…", "images": ["file.jpg"]}, with an "answer" where a short one is right.',
  columns: {
    τ: W.track.tauHelp,
  },
  step: 'An AR step: one token written by the large model alone.',
  answers: 'The answers',
  cut: (tokens) => `… (cut at ${count(tokens, 'token')})`,
  reference: (text) => `Right: ${text}`,
  kinds: 'Speedup by kind of question',
  race: 'Show a race on such a question',
  ask: 'Ask such a question',
  basis: ({ cases, tokens }) =>
    [count(cases, 'question'), tokens && count(tokens, 'token')].filter(Boolean).join(', '),
  few: (n, needed) => `${count(n, 'token')}: fewer than ${needed} say little`,
  all: (kinds) => (kinds.includes('text') ? 'all questions, text too' : 'all questions'),
  papers: 'The five papers',
};
