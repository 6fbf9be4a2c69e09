/* What the tests of the page's scripts share: the scripts, small lanes made by hand, and what the program says of the
   same records, where it started these tests (tests/unit/test_report.py). */

import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { Lane } from '../../specvl_demo/ui/assets/js/records/fold.js';
import { parse } from '../../specvl_demo/ui/assets/js/records/trace.js';
import { Archive } from '../../specvl_demo/ui/assets/js/state/archive.js';
import { Drawing } from '../../specvl_demo/ui/assets/js/state/drawing.js';
import { Form } from '../../specvl_demo/ui/assets/js/state/form.js';
import { Live } from '../../specvl_demo/ui/assets/js/state/live.js';
import { Race } from '../../specvl_demo/ui/assets/js/state/race.js';
import { Replay } from '../../specvl_demo/ui/assets/js/state/replay.js';
import { Runner } from '../../specvl_demo/ui/assets/js/state/runner.js';
import { Stage } from '../../specvl_demo/ui/assets/js/state/stage.js';

const ROOT = new URL('../../', import.meta.url).pathname;
const FOLDER = process.env.SPECVL_FIXTURES ?? '';

/** What the program wrote under a name; null if it did not start these tests. */
export function told(name) {
  const path = join(FOLDER, `${name}.json`);
  return FOLDER && existsSync(path) ? JSON.parse(readFileSync(path, 'utf-8')) : null;
}

/** Lanes of a race's records. */
export function fold(records) {
  const lanes = new Map();
  for (const { kind, ...record } of records) {
    if (kind === 'begin') lanes.set(record.lane, new Lane(record));
    else if (kind === 'round') lanes.get(record.lane).add(record);
    else lanes.get(record.lane).close(record);
  }
  return [...lanes.values()];
}

/** The shipped races: [name, text of the trace]. */
export const TRACES = readdirSync(join(ROOT, 'examples'))
  .filter((name) => name.endsWith('.trace.jsonl'))
  .map((name) => [name, readFileSync(join(ROOT, 'examples', name), 'utf-8')]);

/** The lanes of a shipped race. */
export const shipped = (name) => fold(parse(new Map(TRACES).get(`${name}.trace.jsonl`)));

/** A round of a chain: the drafted letters, of which `kept` came through, then the target's own. */
export function round(index, { kept = '', drafted = kept, own = null, lane = 'chain', ...more }) {
  const tokens = [...kept].map((text) => token(text, 'draft'));
  if (own !== null) tokens.push(token(own, 'target'));
  const tree = {
    tokens: [0, ...[...drafted].map(id)],
    parent: [...drafted].map((_, i) => i).reduce((all, i) => [...all, i], [-1]),
    draft_logp: null,
  };
  const path = Array.from({ length: kept.length + 1 }, (_, i) => i);
  const seconds = { draft_s: 0.02, verify_s: 0.07, commit_s: 0.006, other_s: 0.004 };
  return { lane, index, tokens, tree, path, clock_s: (index + 1) / 10, ...seconds, ...more };
}

const id = (letter) => letter.codePointAt(0);
export const token = (text, origin) => ({ id: text ? id(text) : 0, text, origin });

/** A lane of such rounds that has ended. */
export function lane(rounds, stop = 'eos', name = 'chain') {
  const made = new Lane({ lane: name, vision_s: 0.2, prefill_s: 0.1, draft_prefill_s: 0 });
  rounds.forEach((parts, index) => made.add(round(index, { lane: name, ...parts })));
  if (stop) made.close({ stop });
  return made;
}

/** A picture of a question. */
export const picture = (name) => ({ path: `/${name}`, url: `/${name}`, name, kind: 'image' });

const pair = (id, knows, tabed) => ({
  ...{ id, knows, title: id, available: true, first: ['sage'], words: null },
  describe: { image: 'Describe it.', images: 'Describe them.', video: 'Describe the clip.' },
  loading: { fits: { dtype: 'float32' }, dtype: { float32: true, float16: 'no GPU' } },
  methods: { ar: true, sage: true, tabed, lvspec: true },
});
const example = (id, of, question, trace) => ({
  ...{ id, pair: of, question, trace, title: id, methods: ['sage'], media: [picture(id)] },
});

/** What can be chosen: two pairs, three methods, two examples, few of everything. */
export const CATALOG = {
  machine: 'here',
  pairs: [pair('pocket', 'scenes', true), pair('photo', 'photographs', 'no head')],
  methods: ['ar', 'sage', 'tabed', 'lvspec'].map((name) => ({
    ...{ name, greedy: name === 'lvspec', lossless: name !== 'lvspec' },
    title: { ar: 'AR', sage: 'SAGE', tabed: 'TABED', lvspec: 'LVSpec' }[name],
  })),
  papers: ['sage', 'tabed'],
  rules: { tokens: 4, load: 0.25 },
  examples: [example('scene', 'pocket', 'What is there?', ''), example('dog', 'photo', 'What does it do?', '')],
  limits: { picture_detail: [0.05, 25, 1.25],
    ...{ lanes: 2, files: 2, shown: 2, turns: 2, bytes: 1e6, question: 100, tokens: 50 },
    ...{ picture_types: ['.png'], clip_types: ['.mp4'] },
  },
};

function storage() {
  const store = new Map();
  return { getItem: (key) => store.get(key) ?? null, setItem: (key, text) => store.set(key, text) };
}

/** What of a browser the page's state asks for: an address, storages that are empty, files. Another tab of the same
 *  browser is given its localStorage. */
export function browser({ hash = '', fetch = async () => null, localStorage = storage() } = {}) {
  const location = { hash, search: '', href: `http://here/${hash}` };
  const history = { state: null, replaceState: (state) => (history.state = state) };
  history.pushState = history.replaceState;
  Object.assign(globalThis, { addEventListener() {}, fetch, history });
  for (const [name, value] of Object.entries({ location, localStorage, sessionStorage: storage() }))
    Object.defineProperty(globalThis, name, { value, configurable: true });
}

/** The parts of a page's state on a server that answers so; `feed` gives events of the newest run, `said` is what the
 *  form was told. Nothing moves, and nothing is kept beyond it. */
export function pageState(server = {}, catalog = CATALOG) {
  let heard;
  let [run, seq] = [-1, 0];
  const api = {
    server: { stop_run: async () => null, ...server },
    upload: async ({ name }) => ({ path: `/tmp/${name}`, url: '' }),
    trigger: () => ([run, seq] = [run + 1, 0]),
    watch: (fn) => (heard = fn),
  };
  const race = new Race(catalog.rules);
  const form = new Form(catalog, api.upload, async (file) => file);
  const drawing = new Drawing(async () => ({ seconds: 0, cores: 1 }));
  const said = [];
  form.on('say', ({ text }) => text && said.push(text));
  const basis = { api, catalog, drawing, form, race, still: () => true, download() {} };
  const parts = { ...basis, runner: new Runner(api), replay: new Replay(race) };
  parts.stage = new Stage(parts);
  parts.archive = new Archive(parts);
  parts.live = new Live(parts);
  const feed = (...events) => heard(JSON.stringify({ run: `run${run}`, seq: seq++, events }));
  return Object.assign(parts, { feed, said });
}

/** The records of a shipped race as the server sends them. */
export const scene = () =>
  parse(new Map(TRACES).get('scene.trace.jsonl')).map((record) => ({ k: record.kind, record }));
