/* Every word the page says. Sentences that carry numbers are functions; nothing here knows the DOM. */

const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

const NUMBERS = { 2: 'two', 3: 'three', 4: 'four', 5: 'five', 6: 'six' };

/** Names as a sentence lists them. */
const list = (names) =>
  names.length > 1 ? `${names.slice(0, -1).join(', ')} and ${names.at(-1)}` : names[0];

const places = ['1st', '2nd', '3rd', '4th', '5th', '6th', '7th'];

const origins = { draft: 'accepted draft', relaxed: 'relaxed', target: 'written by the target' };

const phases = { draft_s: 'draft', verify_s: 'verify', commit_s: 'commit', other_s: 'other' };

const agree = (words) =>
  words === null ? '' : `; ${(100 * words).toFixed(0)} % of the words agree`;

export const W = {
  name: 'SpecVL',
  tagline: 'Speculative decoding of vision-language models',
  watched: ', watched round by round',
  tabs: {
    race: 'Race',
    inspect: 'Inspect',
    whatif: 'What if',
    compare: 'Compare',
    replay: 'Replay',
    learn: 'Learn',
  },
  theme: 'Light or dark',
  origins,
  short: { draft: 'draft', relaxed: 'relaxed', target: 'target' },
  phases,
  views: {
    target: 'target',
    multimodal: 'picture',
    text: 'text only',
    'text-only': 'text only',
    caption: 'caption',
    pooled: 'pooled',
    pruned: 'pruned',
    hidden: 'hidden',
    full: 'full',
  },
  notes: {
    alpha: 'confidence α',
    depth: 'depth asked for',
    width: 'width asked for',
    n_nodes: 'nodes',
    cap: 'deepest allowed',
    static: 'fixed shape',
    weights: 'weights',
    matches: 'right so far',
    counted: 'positions counted',
    relevance: 'visual relevance',
    cut: 'λ’s cut',
    entropy: 'target’s entropy',
    gate: 'gate',
  },
  lane: {
    answer: (title) => `Answer of ${title}. Arrow keys walk through its tokens.`,
    focus: (title) => `Show ${title} in the tree and the charts`,
    copy: (title) => `Copy the answer of ${title}`,
    other: 'The autoregressive lane says something else here.',
    missing: 'The lane in focus says something else here.',
    exact: 'exact',
    nearly: 'equal up to rounding',
    law: 'same law',
    lawHelp:
      'It draws by itself, as engines do: every answer is as likely as from the large model alone, but from one seed it is another.',
    exactHelp: (dtype) =>
      `Its checks give the same numbers as plain steps in ${dtype}, bit for bit: the answer is the autoregressive one, token for token.${dtype === 'float32' ? '' : ' On a GPU this is the slower, exact way, for the autoregressive lane too.'}`,
    nearlyHelp: (dtype) =>
      `Many tokens at once round otherwise than one in ${dtype}: where two tokens are nearly as likely, the answer may take the other one.${dtype === 'float32' ? '' : ' SPECVL_EXACT=on takes the slower, exact way.'}`,
    lossy: 'may differ',
    lossyHelp:
      'A relaxed method: its answer may differ from the large model’s own. Relaxed tokens are marked.',
    rejectedHelp: 'drafted, rejected by the target',
    end: 'the end of the answer',
    parts: (origins) =>
      `one character from ${count(origins.length, 'token')}: ${origins.join(', ')}`,
  },
  stop: {
    eos: 'done',
    length: 'token limit',
    cancelled: 'stopped',
    error: 'failed; the others went on',
  },
  track: {
    caption: 'The race: progress and speed of every lane',
    lane: 'Lane',
    laneHelp:
      'A way to decode the answer. All lanes use the same large model on the same question; they run in turns and never at the same moment, each on its own clock.',
    progress: 'Tokens',
    progressHelp: 'How many tokens (pieces of words) each lane has written so far.',
    speedup: 'Speedup',
    speedupHelp:
      'Tokens per second over those of the autoregressive lane, on the same model and code. The time to read the question and the pictures is left out.',
    speed: 'Tokens/s',
    speedHelp:
      'Tokens written per second of the lane’s own compute time, reading the question left out.',
    tau: 'τ',
    tauHelp:
      'Acceptance length: tokens that one pass of the large model yields on average, its own token included. The speedup can never be larger.',
    clock: 'Own clock',
    clockHelp: 'Compute time of this lane alone, reading the question left out.',
    where: 'Time goes to',
    whereHelp:
      'Shares of drafting (guessing), verifying (one pass of the large model), committing (keeping the caches right) and everything else.',
    place: 'Place',
    placeHelp: 'Order of finish by own clock.',
    places,
    unknown: (why) => `No speedup: ${why}.`,
    total: (x) => `${x}× with reading`,
    tokensOf: (title) => `Tokens of ${title}`,
  },
  legend: {
    title: 'How to read the text',
    draft: 'accepted draft',
    relaxed: 'relaxed',
    target: 'written by the target',
    rejected: 'rejected',
    showRejected: 'Show rejected drafts',
  },
  charts: {
    round: 'round',
    tokens: 'tokens',
    times: '× autoregressive',
    percent: '% of judged positions',
    ms: 'milliseconds',
    seconds: 'seconds of the lane’s own clock',
    depth: 'depth in the draft',
    perRound: 'Tokens per round',
    perRoundHelp:
      'What each round added to the answer: accepted drafts, relaxed drafts, and the target’s own token',
    perRoundSay: (title, tau, n) =>
      `Tokens per round of ${title}: ${tau} on average over ${count(n, 'round')}.`,
    speedup: 'Running speedup',
    speedupHelp:
      'Decode speed over the autoregressive lane’s so far. Dotted: the limit if nothing but the two models took any time.',
    speedupSay: (rows) => `Running speedup: ${rows.map(([t, s]) => `${t} ${s}`).join(', ')}.`,
    without: (title) => `${title}: no speedup`,
    noSpeedup: (rows) =>
      `No speedup. ${rows.map(([why, titles]) => `${titles.join(', ')}: ${why}.`).join(' ')}`,
    limit: 'limit',
    shaded: 'drafts kept',
    byDepth: 'Drafted tokens kept',
    byDepthHelp:
      'Of the tokens drafted at a depth below what was kept, the share that was kept too; what was not drafted does not count',
    kept: 'share of those drafted there',
    byDepthSay: (rows) => `Kept at depth ${rows.join(', ')}.`,
    phases: 'Time of each round',
    phasesHelp: 'Milliseconds of each round: drafting, verifying, committing, everything else',
    phasesSay: (rows) => `Time: ${rows.join(', ')}.`,
    declaredSay: (title, lane, rows) =>
      `${title} of ${lane}: ${rows.map(([n, v]) => `${n} ${Number.isFinite(v) ? v.toFixed(2) : '–'}`).join(', ')}.`,
    unreachable:
      'The drawing library could not be fetched. Check the connection and reload the page; everything else works.',
  },
  tree: {
    title: 'Token tree',
    help: 'What was guessed in one round. Each point is a guessed token, each level one place further in the answer; the number is the drafter’s probability. Green: the large model confirmed it. Struck or grey: not used. Blue: what the large model wrote itself.',
    making: (title, round, n, checking) =>
      `${title} · round ${round + 1} · ${checking ? `checking all ${n} in one pass` : `guessing ${count(n, 'token')}`}`,
    slider: 'Round',
    follow: 'Follow',
    followHelp: 'Show the newest round as it comes',
    facts: (title, round, drafted, kept) =>
      `${title} · round ${round + 1} · ${count(drafted, 'drafted token')} · ${kept} kept`,
    own: (text, why) => `${text} — ${why}`,
    root: (text) => `${text} — the last token decided before this round`,
    node: (text, draft, target) =>
      `${text}${draft ? ` — drafter ${draft}` : ''}${target ? ` · target ${target}` : ''}`,
    say: (round, drafted, tokens) =>
      `Round ${round + 1}: ${count(drafted, 'drafted token')}; wrote ${tokens.join(', ')}.`,
  },
  reasons: {
    accepted: 'drafted and kept',
    relaxed: 'drafted and let through',
    corrected: 'the target’s correction',
    bonus: 'the target’s bonus token',
    alone: 'the target’s own token',
  },
  why: {
    accepted: ({ text, p, sampled }) =>
      `The drafter proposed ${text}${p ? ` with probability ${p}` : ''}, and the target ${sampled ? 'drew the same token' : 'would have written the same token'}: kept.`,
    relaxed: ({ text, p, top, topP }) =>
      `The drafter proposed ${text}${p ? ` with probability ${p}` : ''}. The target alone would have written ${top ?? 'another token'}${topP ? ` (${topP})` : ''}; the method’s rule let the draft through.`,
    corrected: ({ text, topP, drafted, kept, sampled }) =>
      `${kept ? `The ${kept > 1 ? `first ${kept} drafted tokens were` : 'first drafted token was'} kept; none of the others` : `None of the ${count(drafted, 'drafted token')}`} is what the target wanted at this place, so it wrote ${text} itself${!sampled && topP ? ` (probability ${topP})` : ''}.`,
    bonus: ({ text }) =>
      `Everything drafted up to here was kept; the same target pass also gave ${text} for free.`,
    alone: ({ text, topP, sampled }) =>
      `Nothing was drafted in this round; the target wrote ${text}${!sampled && topP ? ` (probability ${topP})` : ''}.`,
  },
  inspect: {
    title: 'Token inspector',
    help: 'Where one token of the answer comes from: who guessed it, how likely the drafter and the large model held it and its rivals, and where in the picture the large model’s state at this token resembles the patches.',
    close: 'Close the inspector',
    drafter: 'drafter',
    draws: (gap, overlap) =>
      `Chance decides here: every word has a random number, fixed by the seed, and the word with the highest log-probability plus number is said${gap ? `; the second was ${gap} nats behind` : ''}.${overlap ? ` A drafter with the same numbers agrees in at most ${overlap} of all cases, the overlap of both distributions.` : ''}`,
    hint: 'Pick a token in an answer, or a round in a chart, to see where it comes from.',
    round: (i) => `Round ${i + 1}`,
    roundFacts: (drafted, kept, clock) => `${drafted} drafted, ${kept} kept, at ${clock}`,
    roundGoing: (drafted) => `${drafted} drafted, being checked`,
    place: (i, round, depth) => `token ${i + 1} · round ${round + 1} · depth ${depth}`,
    open: (text) => `Inspect token ${text}`,
    parts: (text, n) => `${text || 'What follows'} is made of ${count(n, 'token')}:`,
    part: (i, origin) => `Part ${i}, ${origin}`,
    previous: 'Previous token',
    next: 'Next token',
    candidates: 'Likeliest tokens at this place',
    candidate: 'candidate',
    light: 'This trace was recorded without candidates.',
    rounds: 'All rounds',
    columns: [
      'Round',
      'Drafted',
      'Kept',
      'Text',
      'Draft, ms',
      'Verify, ms',
      'Commit, ms',
      'Other, ms',
    ],
  },
  patches: {
    heat: 'Similarity',
    heatNote: 'Likeness of the target’s hidden state at this token to each patch of the picture.',
    seen: (view) => `Drafter: ${view}`,
    choose: 'What to paint over the picture',
    share: (kept, all) =>
      `The drafter saw ${kept} of ${count(all, 'patch', 'patches')}; the dark ones were kept from it.`,
    pooled: (kept, all) =>
      `The drafter saw the mean of blocks of patches, ${kept} instead of ${all}; each bright one stands for its block.`,
    instead: (words) => `In place of the picture it read: “${words}”`,
    none: '',
    frame: (name, i) => `${name}, frame ${i + 1}`,
    frames: (n) => `${n} frames`,
    alt: 'A picture of the question',
  },
  player: {
    title: 'Replay',
    play: 'Play the race again',
    pause: 'Pause',
    slider: 'Moment of the race',
    rate: 'Speed of the replay',
    back: 'Previous round',
    next: 'Next round',
    trueSpeed: 'True speed',
    stretched: (x) =>
      x > 1.05
        ? `Shown ${x.toFixed(x < 10 ? 1 : 0)}× slower`
        : x < 0.95
          ? `Shown ${(1 / x).toFixed(1)}× faster`
          : 'As it was',
  },
  explain: (title) => `${title}: what is this?`,
  headline: {
    green: 'Green words',
    model: 'a small model',
    rule: 'a rule without a second model',
    guessed: (by) => ` were guessed by ${by} and confirmed by the large one`,
    none: (by) => `Nothing that ${by} guessed was kept`,
    relaxed: (n, all) => `${n} of ${count(all, 'token')}`,
    through: (n) => ` ${n === 1 ? 'was' : 'were'} let through without being confirmed`,
    answer: (same) => (same ? ': same answer, ' : '; '),
    known: (price) => `, and ${price}.`,
    price: (who, [[base, lane], ...more]) =>
      `. But ${who} ${base && lane ? `says “${lane}” where the large model alone says “${base}”` : lane ? `adds “${lane}”` : `leaves out “${base}”`}${more.length ? `, and differs in ${count(more.length, 'more place')}` : ''}.`,
    sooner: (x) => `decoded ${x}× faster`,
    later: (x) => `but decoding took ${x}× as long`,
    short: (n) => `too short to time (${count(n, 'token')})`,
    disturbed: 'no speedup given (other work disturbed the timing)',
    of: (title) => ` of ${title}`,
    fastest: (n) => `, the fastest of ${n}`,
    alike: (titles, differs) =>
      ` ${list(titles)} ${titles.length === 1 ? 'gives' : 'give'} the same answer${differs ? ' as the large model alone' : ''}.`,
    apart: (titles) =>
      ` ${list(titles)} ${titles.length === 1 ? 'says' : 'say'} something else than the large model alone.`,
    going: (title, n, base) =>
      `One token at a time: ${base} written so far. ${title}, which guesses ahead: ${n}.`,
    alone: (titles) =>
      `Answered by ${list(titles)} alone: no autoregressive lane to hold it against.`,
    cut: 'This race was not run to its end: there is nothing to compare.',
  },
  whatif: {
    title: 'What if the drafter were another?',
    play: 'Race it',
    reset: 'As it was recorded',
    help: 'The answer stays as it was. For each of its tokens the records say whether the drafter guessed it and how sure it was; from that and the recorded costs the race is simulated here, in your browser.',
    none: 'Run or open a race with a method beside the autoregressive lane; it can be simulated when it is over.',
    ar: 'Autoregressive',
    recorded: (title) => `${title}, recorded`,
    simulated: 'Simulated',
    steps: (x) => `${x} steps`,
    was: (x) => `recorded: ${x}`,
    same: (s) => `As it was recorded: ${s}×`,
    why: (title) => `Why ${title} is as fast as it is here`,
    costs: (c, percent) =>
      [
        `A round costs ${c.fixed.toFixed(2)} autoregressive steps whatever it drafts, and ${c.per_token.toFixed(3)} for each of the ${c.drafted.toFixed(1)} tokens that it drafts: ${c.rho.toFixed(2)} in all. It brings ${c.tau.toFixed(2)} tokens.`,
        c.break_even === null
          ? `It could not be faster than autoregressive decoding at any acceptance: with every drafted level kept it would reach ${c.most.toFixed(2)}×.`
          : `It breaks even where ${percent(c.break_even)} of the drafted levels are kept${c.acceptance === null ? '' : `; here it was ${percent(c.acceptance)}`}. With all of them kept it would reach ${c.most.toFixed(2)}×.`,
        c.at_paper === null
          ? 'The paper of this method states no cost of its drafter, so that no speedup at the paper’s costs is shown.'
          : `${c.at_paper.toFixed(2)}× at the paper’s costs (${c.paper}) from the same rounds, beside ${c.speedup.toFixed(2)}× here.`,
        c.gigabytes
          ? `The drafter’s weights take ${c.gigabytes.toFixed(c.gigabytes < 0.1 ? 3 : 2)} GB: ${((c.speedup - 1) / c.gigabytes).toFixed(1)}× gained for each GB.`
          : null,
      ].filter(Boolean),
    acceptance: 'share of drafted levels kept',
    acceptanceSay: (even, here) => `Speedup over acceptance: breaks even at ${even}, here ${here}.`,
    other: (s) =>
      `With these values the answer would come ${s}× as fast as autoregressive decoding`,
    measured: (r) => `; the race itself measured ${r}×.`,
    unsure: (why) => `. The race itself gives no speedup (${why}): take the figures with care.`,
    formula: (f) => `speedup = τ / (v + γ c) = ${f.tau} / (${f.v} + ${f.gamma} × ${f.c}) = ${f.s}`,
    curve: 'draft length γ',
    axis: 'speedup',
    curveSay: (best, s) => `Speedup by draft length: best at ${best} with ${s} times.`,
    roundsSay: (n) => `${n} rounds; green is guessed, blue written by the large model.`,
    sliders: {
      quality: [
        'Drafter quality',
        'The share of the answer’s tokens that the drafter guesses right. A better drafter first gains the tokens that it nearly had.',
      ],
      gamma: [
        'Draft length γ',
        'How many tokens, one after the other, are guessed in a round before the large model checks them.',
      ],
      draft: [
        'Drafter cost c',
        'What one guessed token (one level of a tree) costs, in steps of the autoregressive lane.',
      ],
      row: [
        'Verification cost per token',
        'What each guessed token adds to the pass that checks it, in steps of the autoregressive lane. Nearly nothing on a GPU, more on a CPU.',
      ],
      requests: [
        'Requests at once',
        'How many answers share every pass of the models. Each adds its drafted tokens to the pass that checks them, but only one token to a plain step, so speculation gains less.',
      ],
    },
  },
  guide: {
    title: 'A guided look',
    open: 'Show me how',
    next: 'Next',
    done: 'Done',
    close: 'Close',
    count: (i, n) => `Step ${i} of ${n}`,
    steps: [
      (title) =>
        `Both lanes answer the same question with the same large model. In the first lane it writes one token at a time. ${title} guesses several tokens ahead (pale); the large model checks them all at once: green ones are kept, the first wrong one is struck.`,
      () =>
        'This is one such round. Every point is a guessed token, with the probability that the drafter gave it; the green path is what the large model would have written too. The inspector tells why this token stands in the answer. Pick any other.',
      (title, n) =>
        `${title} needed ${n.rounds} passes of the large model for ${n.tokens} tokens: ${n.tau} tokens a pass. Guessing and checking cost time too, so the speedup is smaller than that. Now ask your own question and press Run.`,
    ],
  },
  ask: {
    title: 'Your question',
    more: 'Picture, question, methods',
    moreShort: 'Ask',
    keys: 'Enter runs, Shift+Enter: new line',
    parameters: 'Parameters',
    tryLive: 'Try it live',
    tryLiveHelp: 'Run the question again whenever a parameter changes.',
    fullLanes: (n) =>
      `${n} methods race beside the autoregressive lane at most: take one away first.`,
    examples: 'Start from an example',
    fails: 'Where it fails, and why',
    question: 'Question',
    questionHint: 'What is in the picture?',
    pair: 'Target and drafter',
    elsewhere: (n) => `${count(n, 'more pair')}, not for this machine`,
    unavailable: (title) => `${title} (not here)`,
    others: (n) => `${n} more…`,
    fewer: 'Fewer',
    expert: (n) => `Expert: ${n} more`,
    papers: (n, all) =>
      all ? `All ${NUMBERS[n] ?? n} papers` : `The ${NUMBERS[n] ?? n} papers that run here`,
    loneLane: (title) => `${title} stays where no method is chosen.`,
    methods: (n) => `Methods (up to ${n})`,
    settingsOf: (title) => `${title} parameters`,
    tries: (title) => `Where ${title} shines and struggles`,
    sampling: 'Length and sampling',
    maxTokens: 'Max new tokens',
    maxTokensHelp: 'The answer stops here at the latest.',
    temperature: 'Temperature',
    temperatureHelp: '0 always takes the likeliest token; higher values draw at random.',
    topP: 'Top-p',
    topPHelp: 'Draws only from the likeliest tokens that add up to this share.',
    seed: 'Seed',
    seedHelp: 'The same seed repeats the same draws.',
    system: 'System prompt',
    systemHelp: 'Put before the conversation, where the model has a place for it.',
    waiting: 'Waiting for the first words',
    run: 'Run the race',
    runningNow: 'Running…',
    stop: 'Stop',
    empty: 'Ask a question or add a picture first.',
    uploading: 'A file is still on its way; one moment.',
  },
  loading: {
    title: 'Precision and picture detail',
    dtype: 'Precision',
    dtypeHelp: 'What the weights are computed in; another one loads the pair anew.',
    quantised: 'Quantisation',
    quantisedHelp:
      'The target’s weights in fewer bits, on a GPU: less memory, a slower check of many tokens.',
    fits: (way) => (way ? `what fits (${way})` : 'what fits'),
    ways: {
      float32: 'float32',
      bfloat16: 'bfloat16',
      float16: 'float16',
      none: 'none',
      '8bit': '8 bits',
      '4bit': '4 bits',
    },
    detail: 'Picture detail',
    detailHelp:
      'Millions of pixels: larger pictures are made smaller. Many models spend more tokens on more pixels.',
    ran: (dtype, device, visual, all) =>
      `The last race ran in ${dtype} on ${device}; ${visual} of the ${all} tokens it read were pictures.`,
  },
  scope: {
    use: (title) => `Use ${title}`,
    noPicture: {
      scenes: 'This model knows drawn scenes only, and there is none in the question.',
      photographs: 'This model describes photographs, and there is none in the question.',
    },
    other: {
      scenes: (names) => `This model knows drawn scenes only; ${names} is not one.`,
      photographs: (names) =>
        `This model was taught photographs; ${names} is a drawing, which it cannot read.`,
    },
    words: (list) =>
      `This model was never taught the ${list.length > 1 ? 'words' : 'word'} ${list.map((w) => `“${w}”`).join(', ')}.`,
    long: (n) => `This model was taught short questions; this one has ${n} words.`,
    after: 'The race is real, the answer means nothing.',
  },
  settings: {
    reset: (name) => `Put ${name} back`,
    resetTo: (v) => `Put back to ${v}`,
    resetAll: 'Put all back',
    changed: (n) => `${n} changed`,
    on: 'on',
    off: 'off',
    paper: (v) => `Paper preset: ${v}.`,
    preset: 'preset',
    presetHelp: 'Where the values below start from.',
  },
  media: {
    title: 'Pictures or a clip',
    choose: 'Choose pictures or a clip',
    list: 'Pictures and clips of the question',
    upload: 'Upload',
    camera: 'Camera',
    hint: 'Drop pictures or a clip here, or paste one.',
    take: 'Take the picture',
    cancel: 'Cancel',
    remove: (name) => `Remove ${name}`,
    sending: (name) => `Sending ${name}…`,
    unknown: (name, types) =>
      `${name} is not part of the question: it is neither a picture nor a clip that can be read (${types}).`,
    broken: (name) =>
      `${name} is not part of the question: it cannot be shown, so it is not a picture, or it is damaged.`,
    refusedRun: (name) =>
      `${name} could not be taken. Take it off the list to run without it, or add another file.`,
    large: (name, size, most) =>
      `${name} is not part of the question: it has ${size}, the limit is ${most}.`,
    many: (n) => `Up to ${n} files fit in one question; this one is not part of it.`,
    noCamera: 'No camera could be used. Allow it for this page, or upload a picture.',
    failed: (name) => `${name} could not be sent. Check the connection, then add it again.`,
    clip: 'clip',
  },
  start: {
    example: (title) =>
      `No race of “${title}” is recorded. Press Run the race, and autoregressive decoding and the chosen methods answer it here, side by side.`,
    title: 'Watch a model answer, twice',
    text: 'Pick an example, or add a picture and a question, and run the race: autoregressive decoding and the methods you choose answer side by side.',
  },
  run: {
    recorded: 'Recorded race',
    live: 'Live',
    yours: 'Your race',
    recordedOn: (machine) => `Recorded on ${machine}`,
    queue: (place, eta) =>
      `Waiting: ${place === 1 ? 'you are next' : `number ${place} in line`}${eta ? `, about ${Math.max(1, Math.round(eta))} s` : ''}.`,
    stage: {
      starting: 'Starting the engine…',
      loading: 'Loading the models…',
      media: 'Opening the pictures…',
      prefill: 'Looking at the pictures and reading the question…',
      decode: '',
    },
    finished: (n) => (n > 1 ? 'All lanes have finished.' : 'Finished.'),
    slowly: 'Watch it slowly',
    verify: 'Verify with AR',
    verifyHint: 'Race the autoregressive lane beside it: same answer, and how much faster?',
    stopping: 'Stopping after the round that is on its way…',
    stopped: 'Stopped. The text written so far is kept.',
    outdated: (question) =>
      `This race answers “${question}” as it was asked before. Run to race what the form asks now.`,
    unbegun: 'Stopped before the first word: nothing was answered.',
    rerun: 'Run again',
    busy: 'A race is running; stop it first.',
    fromLink: 'These settings came with a link. Run the race to see its answers.',
    refused:
      'The server did not take this question: one of its files was never sent to it, or is gone. Take it away and add it again.',
    lost: 'The server does not answer: it was stopped, or cannot be reached. What had arrived is kept; run again when it is back.',
    calm: 'Run again when it is calm',
    waits: (others) =>
      `Waiting until other programs leave the machine alone${others === null ? '' : ` (now ${(100 * others).toFixed(0)} % of it)`}.`,
    busyNow: (others) =>
      `Other programs use ${(100 * others).toFixed(0)} % of the machine: these times will not count.`,
    fromFile: (name) => `This race comes from the file ${name}. Run asks what the form says.`,
    gone: (names) =>
      `${names} could not be brought back, and a follow-up needs it. Add it again and run.`,
    slow: {
      rest: (t, c) =>
        `${t} is slower here: everything outside the models’ forwards costs ${(c.commit_s + c.other_s).toFixed(1)} AR steps a round, and a round emits ${c.tau.toFixed(1)} tokens`,
      draft: (t, c) =>
        `${t} is slower here: drafting costs ${c.draft_s.toFixed(1)} AR steps a round, and a round emits ${c.tau.toFixed(1)} tokens`,
      verify: (t, c) =>
        `${t} is slower here: verifying ${c.nodes.toFixed(0)} nodes costs ${c.verify_s.toFixed(1)} AR steps, and a round emits ${c.tau.toFixed(1)} tokens`,
      kept: (t, c) =>
        `${t} is slower here: too few drafted tokens are accepted (${(c.tau - 1).toFixed(1)} a round)`,
    },
    timing: {
      short: ({ tokens }) =>
        `${count(tokens, 'token')} ${tokens === 1 ? 'is' : 'are'} too few to time, 20 are needed`,
      early: ({ tokens }) => `${count(tokens, 'token')} so far, 20 are needed`,
      cut: () => 'this race was not run to its end',
      disturbed: ({ why, ...n }) =>
        `timing disturbed, not meaningful (${{
          above: () =>
            `a speedup of ${n.speedup.toFixed(1)} is above τ ${n.tau.toFixed(1)}, which nothing can reach`,
          load: () => `other programs kept ${(100 * n.load).toFixed(0)} % of the machine busy`,
          jitter: () =>
            `half of the AR steps lie outside ${(1e3 * n.low).toPrecision(3)} to ${(1e3 * n.high).toPrecision(3)} ms`,
        }[why]()})`,
    },
    agreement: {
      same: (t) => `${t}: same answer, token for token`,
      so_far: (t, { at }) =>
        `${t}: the same so far, ${count(at, 'token')}, then one of the two was stopped`,
      tie: (t, { at, gap, words }) =>
        `${t}: differs from token ${at + 1} on, a rounding tie (${gap.toFixed(3)} nats)${agree(words)}`,
      law: (t) => `${t}: another answer with the target’s law: it draws by itself`,
      differs: (t, { at, words }) => `${t}: differs from token ${at + 1} on${agree(words)}`,
    },
    save: 'Download this race as a trace',
    share: 'Share this race as one file that opens anywhere',
    sharing: 'Making the file…',
    shared: 'race.html holds the whole race: it opens in any browser, without this page.',
    notShared: 'The file could not be made. Try again, or download the trace.',
    link: 'Copy a link to these settings',
    linked: 'The link is in the address bar and on the clipboard.',
    linkInBar: 'The link is in the address bar; copy it from there.',
    linkWithout: 'Your own pictures do not travel with it.',
  },
  learn: {
    formula: (title) => `The rule of ${title}`,
    shines: 'Shines',
    struggles: 'Struggles',
    measured: { shines: 'Best example', struggles: 'Worst example' },
    symbols:
      'In the formulas, S is the speedup over autoregressive decoding; τ the tokens that one pass of the target yields on average, its own included; ρ what drafting or verifying costs a round, in autoregressive steps; p what the target holds likely, q what the drafter does.',
    tryOut: (title) => `Race it on: ${title}`,
    nav: 'Methods',
    look: 'What to look for',
    verdict: 'The paper’s claim, tested here.',
    lossless: 'lossless',
    first: 'Reading a race',
    firstText:
      'A small drafter guesses ahead; the large target checks all guesses in one pass and keeps what it agrees with. Every token of an answer is coloured by where it comes from, and underlined in its own way.',
    origins: {
      draft: 'guessed by the drafter, and exactly what the target would have written',
      relaxed:
        'guessed by the drafter, let through although the target alone would have written something else',
      target: 'a correction, or a bonus after everything drafted was kept',
      rejected: 'guessed, but the target wanted something else',
    },
  },
  compare: {
    methods: 'Methods',
    inputs: 'Questions',
    source: 'What is asked',
    sources: {
      shipped: 'Held-out questions of the pair',
      files: 'My own questions and pictures',
      form: 'The question in the form',
      examples: 'All examples of the pair',
    },
    files: 'Questions (.jsonl) and pictures',
    listed: (names) => `${count(names.length, 'file')}: ${names.slice(0, 5).join(', ')}`,
    question: 'Without .jsonl: ask of each picture',
    describe: 'Describe the picture.',
    fields: {
      questions: 'Questions at most',
      repeats: 'Repeats',
      tokens: 'Tokens an answer at most',
      temperatures: 'Temperatures',
      vary: 'Vary one setting',
    },
    run: 'Compare',
    goOn: 'Go on',
    progress: 'Progress of the comparison',
    noMethod: 'Choose at least one method.',
    sending: 'Sending the questions.',
    notSent: 'The questions could not be sent. Try again.',
    notSaved: 'The files could not be made. Try again.',
    step: (i, n, left) =>
      `Question ${i} of ${n}${left === null ? '.' : `, about ${left < 90 ? `${Math.ceil(left)} s` : `${Math.ceil(left / 60)} min`} left.`}`,
    stopped: 'Stopped. The tables hold what was finished.',
    done: (n) => `Done: ${count(n, 'run')}, repeats and temperatures counted.`,
    empty:
      'Every method answers every question alone, one after the other, in an order that shifts with every repeat: the same as `bench --data` on the command line. Other visitors are let in between two questions.',
    save: 'Tables (CSV, Markdown, LaTeX) and traces',
    picture: (title, format) => `${title} as ${format}`,
    speeds: 'Speedup and its 95 % interval',
    speedsHelp:
      'Decode speed over autoregressive decoding, the median over repeats. The interval says what other questions of this kind might have given: a bootstrap over the questions.',
    kinds: 'Speedup by kind of question',
    kindsHelp: 'Decode speed over autoregressive decoding, for each kind of question by itself.',
    kind: 'kind of question',
    overTemperature: 'Acceptance over temperature',
    overTemperatureHelp:
      'Of the drafted positions that the large model judged, the share it kept. Positions behind the first refused one were not judged.',
    temperature: 'temperature',
  },
  chat: {
    title: 'Conversation so far',
    clear: 'New conversation',
    copy: (n) => `Copy answer ${n}`,
    on: (n) =>
      `Goes on with the conversation: ${count(n, 'answer')} and what they were shown go along.`,
    fresh: 'Begins a new conversation.',
    keepOn: 'Keep the conversation',
    edit: (n) => `Take question ${n} up again`,
    retry: (n) => `Ask question ${n} again`,
    nothing: '(describe)',
    follow: 'Ask a follow-up',
    followHint: 'Ask more about the same pictures',
    question: 'Follow-up question',
    questionHint: 'Ask about the same pictures',
    textHint: 'Ask more about it',
    goesOn: (title) => `A follow-up goes on from the text of ${title}, the longest.`,
    from: (title) => `As far as ${title} had written it.`,
    tooLong: (n, most) =>
      `At most ${most} earlier questions are remembered, and here are ${n}. Begin a new conversation, or take an earlier question up again.`,
    tooMuch: (n, most) =>
      `A conversation may show at most ${most} pictures and clips; with this question it has ${n}. Take some away, or begin a new conversation.`,
  },
  trace: {
    untitled: 'A race',
    open: 'Open a trace',
    drop: 'Drop a trace file here, or choose one. Nothing is sent anywhere: it is read in your browser.',
    tooLarge: 'This trace is larger than 64 MB.',
    notJson: (n) => `Line ${n} is not JSON. A trace is one JSON record a line.`,
    line: (n, why) => `Line ${n}: ${why}.`,
    nothing: 'No lane begins in this file. Is it a trace?',
    unreachable: 'The recorded race could not be fetched. Check the connection, then try again.',
    kind: 'a record is a begin, a round or an end',
    lane: 'the lane has no name',
    twice: 'this lane begins twice',
    format: (found, own) =>
      `it was written in format ${found}, and this page reads format ${own}: open it with the version that wrote it`,
    field: (path) => `${path} is missing, unknown or has a value that the format does not allow`,
    incomplete: 'the record contradicts itself',
    before: 'this lane has not begun',
    order: 'the rounds are out of order',
    after: 'this lane has ended already',
    clock: 'its clock is not the sum of its rounds',
    tooLong: 'longer than 8 MB',
    lanes: (most) => `at most ${most} lanes are taken`,
    tooMany: (most) => `More than ${most} lines.`,
    totals: (lane, what) =>
      `The total ${what} of lane ${lane} is not what its rounds add up to, or more than it may be.`,
    recorded: 'Recorded races',
    none: 'No recorded races ship with this copy.',
    yours: 'Your races',
    noneYet: 'Races you run are kept here, in this browser alone, and can be played again.',
    forget: 'Forget my races and my form',
    forgotten: 'Forgotten.',
  },
};
