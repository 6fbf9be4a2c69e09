/* Every word on the page, but for those of Compare and What if, and how numbers are written. */

const UNKNOWN = '–'; // never zero

/** What writes a number by `write`, and a dash for anything else.
 *  @type {(write: (x: number) => string) => (x: unknown) => string} */
const known = (write) => (x) => (typeof x === 'number' && Number.isFinite(x) ? write(x) : UNKNOWN);

/** @param {number} s */
function inSeconds(s) {
  if (s >= 1) return `${s.toFixed(2)} s`;
  return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
}

/** A probability in three digits. @param {number} p */
function inThousandths(p) {
  if (p >= 0.9995) return '1.00';
  return p < 0.001 ? '<.001' : p.toFixed(3).replace(/^0/, '');
}

export const fmt = {
  /** @param {unknown} x */
  number: (x, digits = 2) => known((n) => n.toFixed(digits))(x),
  speed: known((x) => x.toFixed(x >= 99.95 ? 0 : 1)),
  times: known((x) => `${x.toFixed(2)}×`),
  seconds: known(inSeconds),
  percent: known((x) => `${(100 * x).toFixed(x > 0 && x < 0.095 ? 1 : 0)} %`),
  prob: known(inThousandths),
  /** @param {number} n */
  bytes: (n) => (n >= 1 << 20 ? `${(n / (1 << 20)).toFixed(1)} MB` : `${Math.ceil(n / 1024)} kB`),
};

/** A number with its noun in singular or plural. */
export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

const NUMBERS = 'no one two three four five six seven eight nine ten'.split(' ');

/** A number as a sentence has it: small ones as words. */
const spelt = (n) => NUMBERS[n] ?? n;

/** A number with its thousands apart. */
const grouped = (n) => n.toLocaleString('en');

/** Names as a sentence lists them. */
const list = (names) =>
  names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : names[0];

const origins = { draft: 'accepted draft', relaxed: 'relaxed', target: 'written by the target' };

const EQUAL = 0.05; // a speedup so near to one is none

const portion = (share) => `${(100 * share).toFixed(0)} %`;

/** How much of two answers agrees, in words. */
const agree = (alike) => (alike === null ? '' : `; ${portion(alike)} of the text agrees`);

const proposed = (text, p) => `The drafter proposed ${text}${p ? ` with probability ${p}` : ''}`;

const TOKEN = 'a word, a part of one, or a punctuation mark';

const rejected =
  'guessed, but not kept: orange where the target wrote its own token instead, grey elsewhere';

const unadded = (name, why) => `${name} was not added: ${why}`;

const GIVEN = ' from the given beginning on';

const LATER = '; what was asked after it goes';

const SILENT = 'The server does not answer: it was stopped or cannot be reached.';

export const W = {
  name: 'SpecVL',
  tagline: 'Speculative decoding of vision-language models',
  watched: ', watched round by round',
  tabs: { race: 'Race', compare: 'Compare', learn: 'Learn' },
  skip: 'Skip to the content',
  theme: 'Light or dark',
  origins,
  phases: { draft_s: 'draft', verify_s: 'verify', commit_s: 'commit', other_s: 'other' },
  views: {
    target: 'target',
    multimodal: 'picture',
    text: 'text only',
    'text-only': 'text only',
    pruned: 'fewer patches',
  },
  lane: {
    answer: (title) => `Answer of ${title}. Arrow keys walk through its tokens.`,
    focus: (title) => `Show ${title} in tree and charts`,
    other: (title) => `${title} has another token here.`,
    exact: 'exact',
    plainHelp:
      'The large model alone, one token a pass (an “AR step”): the others are measured against it.',
    nearly: 'equal up to rounding',
    exactHelp: (dtype, weights) =>
      `Its checks give the same numbers as plain steps ${weights ? `with the same ${weights}` : `in ${dtype}`} on the same machine, bit for bit: the answer is the autoregressive one.`,
    nearlyHelp: (dtype) =>
      `In ${dtype} a pass over many tokens rounds differently than one over one: where two tokens nearly tie, the answer may take the other. The command line’s --exact on is slower and exact.`,
    instead: (text) => `Let through; the target would have written “${text}”.`,
    by: (view) => `mostly the guess of: ${view}`,
    relaxed: (n) => `${n} relaxed`,
    lossy: 'may differ',
    lossyHelp:
      'A relaxed method: its answer may differ from the large model’s. Relaxed tokens are marked.',
    end: 'the end of the answer',
    parts: (kinds) => `one character from ${count(kinds.length, 'token')}: ${kinds.join(', ')}`,
  },
  stop: {
    eos: 'done',
    stop: 'ended at the stop string',
    length: 'token limit',
    cancelled: 'stopped',
    error: 'failed; the others continued',
  },
  track: {
    caption: 'Lanes take turns; each has its own clock.',
    chosen: 'An example, chosen to teach: Compare tells what is gained on average.',
    lane: 'Lane',
    bar: 'Tokens',
    speedup: 'Speedup',
    speedupHelp:
      'Tokens per second over those of the autoregressive lane, without reading the question; of typical rounds where it says so.',
    speed: 'Tokens/s',
    tau: 'Tokens per check (τ)',
    tauHelp:
      'Acceptance length: tokens per check by the large model, its own included. No speedup can be larger.',
    clock: 'Time',
    where: 'Time goes to',
    whereHelp: 'Drafting, verifying, committing (keeping caches right), and the rest.',
    about: (x) => `about ${x.toFixed(1)}×`,
    timed: (seconds) =>
      `By the mean of ${seconds.length} timings (${seconds.join(', ')}); rounds tell the first`,
    total: (x) => `${x}× in all`,
    totalHelp: (before) => `In all: with ${before} of reading the pictures and the question.`,
    tokensOf: (title) => `Tokens of ${title}`,
  },
  legend: {
    ...origins,
    title: 'How to read the text',
    rejected: 'rejected',
    after: 'rejected with it',
    preferred: 'the target’s choice',
    by: 'line above: by which view',
    other: 'not as autoregressive',
    showRejected: 'Show rejected drafts',
  },
  charts: {
    round: 'round',
    times: '× autoregressive',
    percent: '% kept',
    seconds: 'seconds of the lane’s time',
    depth: 'depth in the draft',
    speedup: 'Running speedup',
    speedupHelp:
      'The time of autoregressive decoding for as many tokens, over this lane’s. Pale where times are doubtful.',
    speedupSay: (rows) => `Running speedup: ${rows.map(([t, s]) => `${t} ${s}`).join(', ')}.`,
    without: (title) => `${title}: not timed`,
    noSpeedup: ({ sentence, about = null }, titles = []) =>
      `Speedup${titles.length ? ` of ${list(titles)}` : ''} ${about ? 'only rough' : 'not measured'}: ${sentence}.`,
    rough: (title, x) => `${title} ${W.track.about(x)}`,
    shaded: (most) => `drafts kept (full height: ${most})`,
    byDepth: 'Drafted tokens kept',
    byDepthHelp:
      'Of the rounds that drafted so deep after accepted drafts, the share that kept a token there',
    later: 'Drawn once enough is written; on a busy machine, when the race is over.',
    ended: 'Drawn when a race has ended.',
    byDepthNone: 'Nothing was drafted.',
    byDepthFew: 'Fewer than five drafts: a rough picture.',
    byDepthMore: 'Deeper drafts were fewer than five.',
    byDepthMany:
      'Left out: depths of fewer than five drafts, or that under a tenth of the rounds can reach.',
    kept: 'share of the rounds that drafted so deep',
    byDepthSay: (rows) => `Kept at depth ${rows.join(', ')}.`,
    declaredSay: (title, lane, rows) =>
      `${title} of ${lane}: ${rows.map(([n, v]) => `${n} ${fmt.number(v)}`).join(', ')}.`,
    unreachable: 'The chart library could not be loaded: check the connection and reload the page.',
  },
  tree: {
    title: 'Token tree',
    help: `What one round guessed, after the last token decided before, left. Lines lead to what may come next, and part where several tokens were guessed for one place. Numbers tell how likely the drafter held a token, 0 to 1. Green: kept; blue: the large model’s own. Rejected: ${rejected}. ␣ is a space, ↵ a new line, ■ the end of the answer.`,
    start: '(start)',
    making: (title, round, n, checking) =>
      `${title} · round ${round + 1} · ${checking ? `checking all ${n} in one pass` : `guessing ${count(n, 'token')}`}`,
    slider: 'Round',
    previous: 'Previous round',
    next: 'Next round',
    facts: (title, round, drafted, kept) =>
      `${title} · round ${round + 1} · ${count(drafted, 'drafted token')} · ${kept} kept`,
    own: (text, why) => `${text} — ${why}`,
    root: (text) => `${text} — the last token that was decided before this round`,
    node: (text, draft, target) =>
      `${text}${draft ? ` — drafter ${draft}` : ''}${target ? ` · target ${target}` : ''}`,
    say: (round, drafted, tokens) =>
      `Token tree of round ${round + 1}, ${count(drafted, 'drafted token')}; wrote ${tokens.join(', ')}. Arrow keys walk through it.`,
  },
  chase: {
    title: 'The race over the whole screen',
    open: 'Full screen',
    ghost: 'one at a time is here',
    start: 'Start',
    far: (n, ...told) => [count(n, 'token'), ...told].filter(Boolean).join(' · '),
    keys: 'Space plays, arrows change the round, Escape leaves.',
  },
  strip: {
    title: 'The tree of every round',
    help: 'Deeper: guessed further ahead; wider: more alternatives. A click opens the round.',
    round: (i, drafted, kept, deep, wide) =>
      `Round ${i + 1}: ${count(drafted, 'drafted token')}, ${kept} kept; ${deep} deep, ${wide} wide`,
    say: (title, shapes) =>
      `Trees of ${title}: ${shapes
        .map(({ deep, wide }) => `${deep} deep and ${wide} wide`)
        .slice(0, 20)
        .join(', ')}.`,
  },
  reasons: {
    corrected: 'the target’s correction',
    bonus: 'the target’s bonus token',
    alone: 'the target’s own token',
  },
  why: {
    accepted: ({ text, p, sampled }) =>
      `${proposed(text, p)}, and the target ${sampled ? 'drew the same token' : 'would have written the same token'}: kept.`,
    relaxed: ({ text, p, top, topP }) =>
      `${proposed(text, p)}. The target would have written ${top ?? 'another token'}${topP ? ` (${topP})` : ''}; the method’s rule let the draft through.`,
    corrected: ({ text, topP, drafted, kept, sampled }) =>
      `${kept ? `The ${kept > 1 ? `first ${kept} drafted tokens were` : 'first drafted token was'} kept; none of the others` : `None of the ${count(drafted, 'drafted token')}`} is what the target wanted here, so it wrote ${text} itself${!sampled && topP ? ` (probability ${topP})` : ''}.`,
    bonus: ({ text }) =>
      `All that was drafted up to here was kept; the same target pass also gave ${text}.`,
    alone: ({ text, topP, sampled }) =>
      `Nothing was drafted in this round; the target wrote ${text}${!sampled && topP ? ` (probability ${topP})` : ''}.`,
  },
  fallen: {
    another: 'another token',
    rejected: ({ text, p, own, ownP, relaxed, sampled }) =>
      `${proposed(text, p)}. The target ${sampled ? 'drew' : 'preferred'} ${own}${ownP && !sampled ? ` (${ownP})` : ''}${relaxed ? `, and ${relaxed} was let through in its place` : ''}: rejected.`,
    after: ({ lost, own, sampled }) =>
      `Guessed to come after ${lost}, which was rejected: the target ${sampled ? 'drew' : 'preferred'} ${own} there.`,
    ended: 'The answer had ended before this place.',
  },
  branch: {
    take: (text) => `Branch: take ${text} here instead`,
    told: 'A race begins: the answer up to here stays, and goes on from this token.',
    run: 'Run the branch',
    given: 'Given: the answer had to begin with this.',
    title: (lane) => `The original, ${lane}`,
    fork: (taken) => `The branch takes ${taken} here.`,
    back: 'Back to the original',
    lost: 'This browser no longer keeps the original.',
  },
  inspect: {
    title: 'Token inspector',
    close: 'Close the inspector',
    drafter: 'drafter',
    draws: ({ gap, overlap }) =>
      `After temperature and top-p, unlike the table. Every token has a random number, fixed by the seed; the highest sum of that and log-probability wins${gap === null ? '' : `; the second was ${fmt.number(gap)} nats behind`}.${overlap === null ? '' : ` A drafter with the same numbers agrees at most ${fmt.percent(overlap)} of the time: the overlap of both distributions.`}`,
    hint: 'Pick a token in an answer or in the tree to see where it comes from.',
    round: (i) => `Round ${i + 1}`,
    roundFacts: (drafted, kept, clock) => `${drafted} drafted, ${kept} kept, at ${clock}`,
    roundGoing: (drafted) => `${drafted} drafted, being checked`,
    place: (i, round, depth) => `token ${i + 1} · round ${round + 1} · depth ${depth}`,
    fallen: (kind, round, depth) => `${kind} · round ${round + 1} · depth ${depth}`,
    root: 'before this round',
    open: (text) => `Inspect token ${text}`,
    previous: 'Previous token',
    next: 'Next token',
    candidates: 'Most likely tokens at this position (·: not among them)',
    candidate: 'candidate',
    light: 'This trace was recorded without candidates.',
    rounds: 'All rounds',
    columns: 'Round|Drafted|Kept|Text|Draft, ms|Verify, ms|Commit, ms|Other, ms'.split('|'),
  },
  patches: {
    looks: 'Where it looked',
    looksNote:
      'The drafter’s attention as it guessed this token, over its mean: bright patches got more than usual.',
    little: 'less',
    much: 'more than usual',
    seen: (view) => `What it saw: ${view}`,
    choose: 'What to show over the picture',
    share: (kept, all) =>
      kept === all
        ? `The drafter saw all ${count(all, 'patch', 'patches')}.`
        : `The drafter saw ${kept} of ${count(all, 'patch', 'patches')}; the dark ones were hidden.`,
    pooled: (kept, all) =>
      `The drafter saw ${kept} means of blocks, not all ${all} patches: each bright one stands for its block.`,
    instead: (words) => `In place of the picture it read: “${words}”`,
    frame: (name, i) => `${name}, frame ${i + 1}`,
    frames: (n) => `${n} frames`,
    alt: 'A picture of the question',
  },
  player: {
    title: 'Replay',
    play: 'Play the race again',
    pause: 'Pause',
    slider: 'Position in the race',
    speedHelp: 'Between this and real speed',
    trueSpeed: 'Real speed',
    slower: (x) => `${x.toFixed(x < 10 ? 1 : 0)}× slower`,
    shown: (x) => `shown ${W.player.slower(x)}`,
    played: (seconds, slower) =>
      `A replay of ${seconds} of writing${slower ? `, ${slower}` : ''}. `,
  },
  explain: (title) => `${title}: what is this?`,
  headline: {
    green: 'Green words',
    model: 'a small model',
    rule: 'a rule without a second model',
    guessed: (by) => ` were guessed by ${by} and confirmed by the large one`,
    by: (by, who) => `${by}${who && ` (${who})`} guessed`,
    none: (...by) => `Nothing that ${W.headline.by(...by)} was kept`,
    ended: (...by) => `Of all that ${W.headline.by(...by)}, only the end of the answer was right`,
    relaxed: (n, all) => `${n} of ${count(all, 'token')}`,
    through: (n) => ` ${n === 1 ? 'was' : 'were'} let through without being confirmed`,
    answer: (same, begun) => (same ? `: same answer${begun ? GIVEN : ''}, ` : '; '),
    known: (price) => `, and ${price}.`,
    other: (base, lane) => {
      if (!lane) return `leaves out “${base}”`;
      return base ? `says “${lane}” where the large model alone says “${base}”` : `adds “${lane}”`;
    },
    price: (who, [[base, lane], ...more]) =>
      `. But ${who} ${W.headline.other(base, lane)}${more.length ? `, and differs in ${count(more.length, 'more place')}` : ''}.`,
    pace: (x, digits, alike) => {
      if (x > 1 + EQUAL) return `${x.toFixed(digits)}× faster to write`;
      return x < 1 - EQUAL ? `${(1 / x).toFixed(digits)}× slower to write` : alike;
    },
    took: (x, total) => {
      const said = W.headline.pace(x, 2, `no faster to write (${x.toFixed(2)}×)`);
      const all = total && x >= 1 - EQUAL ? `, ${total.toFixed(2)}× with reading the question` : '';
      return `${x > 1 + EQUAL ? '' : 'but '}${said}${all}`;
    },
    doubtful: (tau, about, sentence) =>
      about
        ? `about ${W.headline.pace(about, 1, 'as fast to write')}; ${sentence}`
        : `${tau.toFixed(2)} tokens per check (τ); speedup not measured: ${sentence}`,
    of: (title) => ` of ${title}`,
    fastest: (n) => `, the fastest of ${n} to write`,
    apart: (title) => `. ${title} differs from the large model’s own answer.`,
    plain: 'one at a time',
    going: (lanes) => {
      const far = ([title, speed, done]) => `${title} ${fmt.speed(speed)}${done ? ' (done)' : ''}`;
      return `Tokens per second: ${list(lanes.map(far))}.`;
    },
    alone: (titles) =>
      `Answered by ${list(titles)} alone: there is no autoregressive lane to compare it with.`,
    cut: 'This race was not run to its end: its times are not compared.',
  },
  close: 'Close',
  story: {
    title: 'The race as a story',
    open: 'Explain this race',
    play: 'Play',
    back: 'Back',
    next: 'Next',
    text: 'The answer so far',
    meanwhile: (text, over) => `${over ? 'At its end' : 'Meanwhile'}, one token at a time: ${text}`,
    count: (i, n) => `${i} of ${n}`,
    ends: ' (the end)',
    keys: 'Arrow keys lead on and back, Escape leaves.',
    begin: (title, by) =>
      `A large model is asked this. With ${title} it need not write token after token: ${by} guesses ahead. (A token is ${TOKEN}.)`,
    plain: `A large model is asked this. It writes one token after the other: ${TOKEN}.`,
    step: 'The large model writes one token.',
    nothing: 'Nothing is guessed here: the large model writes one token.',
    why: ' (To read all weights from memory takes most of a large model’s step, for one token or for many.)',
    drafted: ({ drafted, branches, shown }, by) => {
      const all = `${by[0].toUpperCase()}${by.slice(1)} guesses ${spelt(drafted)} ${drafted === 1 ? 'token' : 'tokens'}`;
      if (branches > 1)
        return `${all}, some for the same place; ${shown === 1 ? 'one is' : `${spelt(shown)} in a row are`} shown here.`;
      return shown < drafted
        ? `${all}; the last ${spelt(drafted - shown)}, not shown, would follow the end.`
        : `${all}.`;
    },
    checked: ({ drafted, kept, struck, relaxed, own }, later) => {
      const number = String(spelt(drafted));
      const whole = { 1: 'it', 2: 'both' }[kept] ?? `all ${spelt(kept)}`;
      const all = kept === drafted ? whole : spelt(kept);
      const added = struck
        ? `writes “${own?.trim()}” in place of the next`
        : `adds “${own?.trim()}”`;
      const begin = later
        ? `${number[0].toUpperCase()}${number.slice(1)} more guessed: the large model`
        : `The large model checks ${drafted === 1 ? 'it' : 'them all at once'} and`;
      return `${begin} keeps ${kept ? all : 'none'}${relaxed ? ` (${spelt(relaxed)} of which it would not have written)` : ''}${own === null ? '' : `, and ${own === '' ? 'ends the answer' : added}`}.`;
    },
  },
  ask: {
    title: 'Your question',
    more: 'Your picture',
    keys: 'Enter runs, Shift+Enter: new line',
    parameters: 'Parameters',
    fullLanes: (n) => `${n} methods at most race beside the autoregressive lane: remove one first.`,
    examples: 'Start from an example',
    fails: 'model errs',
    several: (n) => count(n, 'method'),
    question: 'Question',
    pair: 'Target and drafter',
    elsewhere: (n) => `${count(n, 'larger pair')}, for a GPU`,
    elsewhereHelp: 'How to run them: docs/gpu.md of the repository. Why not here:',
    unavailable: (title) => `${title} (not here)`,
    others: (n) => count(n, 'other method'),
    expertMethod: 'Expert: a method of your own parts',
    moreExamples: (n) => count(n, 'more example'),
    expert: (n) => `Expert: ${n} more`,
    papers: (n, all) =>
      `Choose ${all ? 'all' : 'the'} ${spelt(n)} papers${all ? '' : ' that run here'}`,
    methods: (n) => `Methods: up to ${n} beside the autoregressive lane`,
    settingsOf: (title) => `${title} parameters`,
    sampling: 'Length and sampling',
    further: 'Further limits, penalties, stop string',
    system: 'System prompt',
    systemHelp: 'Placed before the conversation, if the model has one.',
    waiting: 'Waiting for the first words',
    run: 'Run the race',
    runningNow: 'Running…',
    stop: 'Stop',
    empty: 'Type a question or add a picture first.',
    untyped: 'Empty: the grey words are asked',
    uploading: 'The race begins as soon as the file is there.',
    greedy: (titles) =>
      `Not defined for sampling, and left out: ${list(titles)}. At temperature 0 all can race.`,
    long: (what, n, most) =>
      `The ${what} has ${grouped(n)} characters; ${grouped(most)} are the limit. Shorten it, then run.`,
  },
  loading: {
    title: 'Precision and picture detail',
    dtype: 'Precision',
    dtypeHelp: 'The number format; changing it loads the pair again.',
    quantised: 'Quantisation',
    quantisedHelp: 'Target weights in fewer bits: less memory, slower verification.',
    fits: (way) => (way ? `what fits (${way})` : 'what fits'),
    ways: {
      '8bit': '8 bits',
      '4bit': '4 bits',
    },
    detail: 'Picture detail',
    detailHelp: 'Millions of pixels, to which larger pictures are scaled down.',
    ran: (target, dtype, device, visual, all) =>
      `The last race ran in ${dtype} on ${device} (${target}); ${visual} of the ${all} tokens it read were pictures.`,
  },
  scope: {
    use: (title) => `Use ${title}`,
    noPicture: {
      scenes: 'This model knows only drawn scenes, and there is none in the question.',
      photographs: 'This model describes photographs, and there is none in the question.',
    },
    other: {
      scenes: (names) =>
        `This model knows only its own kind of drawn scenes, and ${list(names)} may be something else.`,
      photographs: (names) =>
        `This model was trained on photographs, and cannot read drawings: ${list(names)}.`,
    },
    words: (unknown) =>
      `This model was not trained on ${unknown.map((word) => `“${word}”`).join(', ')}.`,
    long: (n) => `This model was trained on short questions; this one has ${n} words.`,
    outside: (why, sure = true) =>
      `${why} ${sure ? 'The' : 'If so, the'} race is real, the answer means nothing.`,
  },
  settings: {
    reset: (name) => `Reset ${name}`,
    resetTo: (v) => `Reset to ${v || 'none'}`,
    resetAll: 'Reset all',
    changes: (n, examples) =>
      [...examples.map((title) => `as in “${title}”`), ...(n ? [`${n} changed`] : [])].join(', '),
    on: 'on',
    off: 'off',
    paper: (v) => `Paper preset: ${v}.`,
    preset: 'preset',
    presetHelp: 'What the values below start from.',
    slots: {
      drafter: ['drafter', 'Who guesses what comes next.'],
      views: ['views', 'What the drafter sees of the prompt.'],
      policy: ['tree', 'The shape of what is drafted in a round.'],
      verifier: ['verifier', 'Who decides which drafts stay.'],
    },
  },
  media: {
    title: 'Pictures and clips',
    upload: 'Upload',
    camera: 'Camera',
    hint: 'Drop pictures or clips here, or paste one.',
    take: 'Take the picture',
    cancel: 'Cancel',
    remove: (name) => `Remove ${name}`,
    sending: (name) => `Sending ${name}…`,
    unknown: (name, types) =>
      unadded(name, `it is neither a picture nor a clip that can be read (${types}).`),
    broken: (name) => unadded(name, 'your browser cannot show it. It may be damaged.'),
    refusedRun: (name) =>
      `${name} could not be used. Remove it to run without it, or add another file.`,
    large: (name, size, most) => unadded(name, `it has ${size}, and the limit is ${most}.`),
    empty: (name) => unadded(name, 'the file is empty.'),
    many: (name, n) => unadded(name, `a question can have ${n} files.`),
    noCamera: 'No camera could be used. Allow it for this page, or upload a picture.',
    failed: (name) => `${name} could not be uploaded. Check the connection, then add it again.`,
    clip: 'clip',
  },
  start: {
    title: 'Watch a model answer twice',
    text: 'Pick an example, or add a picture and a question, and run the race.',
    own: 'What you added is in the form: press Run the race.',
  },
  run: {
    recorded: 'Recorded race',
    opened: 'From a file',
    live: 'Live',
    yours: 'Your race',
    saved: 'Saved race',
    recordedOn: (machine, { when = '', processor = '' } = {}) =>
      `Recorded${when ? ` on ${when}` : ''} on ${processor ? `${processor}, ` : ''}${machine}. On another processor live numbers may differ, and where tokens nearly tie, the answer.`,
    queue: (place) => `Waiting: ${place === 1 ? 'you are next' : `number ${place} in line`}.`,
    loading: (what) => `Loading the models${what ? `: ${what}` : ''}…`,
    waited: (stage, seconds) => `${stage} ${seconds} s so far.`,
    stage: {
      starting: 'Starting the engine…',
      media: 'Opening the pictures…',
      prefill: 'Reading the pictures and the question…',
      decode: '',
    },
    stopping: 'Stopping after the current round…',
    stopped: 'Stopped. The text written so far is kept.',
    without: 'no picture',
    changes:
      'another target|other pictures|another question|another system prompt|other methods or settings of them|other length, sampling or precision|other questions before it'.split(
        '|',
      ),
    outdated: (question, changed) =>
      `This race answers “${question}”. The form now has ${changed.length ? list(changed) : 'something else'}: press Run to race that.`,
    unbegun: 'Stopped before the first word: that run has no answer.',
    busy: 'A race is running; stop it first.',
    brokenLink: 'The link is damaged and cannot be read. Ask for it again.',
    unknownLink: (names) =>
      `The link asks for ${list(names.map((name) => `“${String(name).slice(0, 40)}”`))}, not known here. The rest is in the form.`,
    fromLink: (without) =>
      `These settings came with a link${without ? ', without its pictures: add yours' : ''}. Run the race to see its answers.`,
    refused:
      'The server did not accept this question: one of its files is not there. Remove it and add it again.',
    lost: `${SILENT} What has arrived is kept; run again when the server is back.`,
    away: `${SILENT} Try again when it is back.`,
    measure: 'Race again at once, without drawing',
    undrawn: 'Measuring without drawing; it is played back when it is done.',
    busyNow: (others) =>
      `Other programs use ${portion(others)} of the machine: these times will not count.`,
    fromFile: (name) => `This race comes from the file ${name}. Run uses what is in the form.`,
    left: 'The race that ran when the page was left was not kept.',
    gone: (names) =>
      `${names} could not be restored, and a follow-up needs it. Add it again and run.`,
    early: (tokens, needed) => `${count(tokens, 'token')} so far; ${needed} are needed`,
    loaded: (load) => `timing disturbed (other programs kept ${portion(load)} of the machine busy)`,
    uncompared: 'the server has not compared its lanes',
    agreement: {
      same: (titles, _, begun) =>
        `${list(titles)}: same answer${begun ? GIVEN : ''}, token for token`,
      so_far: (titles) => `${list(titles)}: the same as autoregressive, as far as both go`,
      tie: ([t], { at, gap, alike, dtype }) =>
        `${t}: differs from token ${at + 1} on, a near tie that rounding in ${dtype} decided (${gap.toFixed(3)} nats)${agree(alike)}`,
      differs: ([t], { at, alike }) => `${t}: differs from token ${at + 1} on${agree(alike)}`,
    },
    reasons: (n) => `Why these speeds, of ${spelt(n)} lanes`,
    save: 'Save',
    saveAs: {
      link: 'A link to these settings',
      race: 'A link to this race',
      trace: 'A trace (JSON lines)',
      page: 'The page with this race, in one file',
      figure: 'A figure (SVG)',
      pdf: 'Print the figure, or save as PDF',
    },
    sharing: 'Making the file…',
    shared: (name) => `${name} shows the whole race in any browser, without this page.`,
    printed: 'The browser prints it: choose “Save as PDF” there.',
    notShared: 'The file could not be made. Try again, or save the trace.',
    linked: 'The link is in the address bar and on the clipboard.',
    linkInBar: 'Copy the link from the address bar.',
    linkWithout: 'Your own pictures are not part of it.',
    linkAlone: 'Nor is the conversation before it.',
  },
  learn: {
    formula: (title) => `The rule of ${title}`,
    others: 'Other methods',
    watch: (title) => `Watch “${title}”`,
    nav: 'Lessons',
    look: 'What to look for.',
    verdict: 'The paper’s claim, tested on drawn scenes (Compare has photographs)',
    first: 'Reading a race',
    origins: {
      draft: 'guessed, and exactly what the target would have written',
      relaxed: 'guessed and let through, although the target would have written something else',
      target: 'a correction, or a bonus after everything drafted was kept',
      rejected,
      after: rejected,
      other: 'Bold in a frame: here this complete answer and the autoregressive one differ.',
    },
  },
  chat: {
    title: 'Conversation so far',
    clear: 'New conversation',
    on: (n, pictures) => {
      const seen = pictures ? ` and ${count(pictures, 'picture')}` : '';
      return `Continues the conversation, with ${count(n, 'earlier question')}${seen}.`;
    },
    fresh: 'Asked by itself.',
    keepOn: 'Ask as a follow-up',
    edit: (n, later) => `Edit question ${n}${later ? LATER : ''}`,
    retry: (n, later) => `Ask question ${n} again${later ? LATER : ''}`,
    nothing: 'Describe what is shown.',
    follow: 'Ask a follow-up',
    next: 'Type your next question and press Run. The model then knows this question and its answer.',
    followHint: 'Ask about the same pictures',
    question: 'Follow-up',
    textHint: 'Ask more about it',
    goesOn: (title) => `A follow-up continues from what ${title} had written.`,
    from: (title) => `As far as ${title} had written it.`,
    tooLong: (n, most) =>
      `At most ${most} earlier questions are remembered, and there are ${n}. Begin a new conversation, or edit an earlier question.`,
    tooMuch: (n, most) =>
      `A conversation can have at most ${most} pictures and clips; with this question it has ${n}. Remove some, or start a new conversation.`,
  },
  trace: {
    untitled: 'A race',
    open: 'Open a trace',
    drop: 'Or drop one here. The server checks it, compares answers and times, and keeps nothing.',
    wrong: (name, sentence) =>
      `${name} could not be opened as a trace, a file that Save makes: ${sentence}`,
    notRead: 'The server could not check this trace. It may have at most 64 MB.',
    unreachable: 'The recorded race could not be loaded. Check the connection, then try again.',
    elsewhere: 'The link names a trace that is not on this server.',
    yours: (n) => `Your races${n ? ` (${n})` : ''} and traces`,
    forget: 'Forget my races and my form',
    forgotten: 'Forgotten.',
  },
};
