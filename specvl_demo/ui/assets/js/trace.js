/* Traces: JSON lines of records, as the engine writes them. Read from text with checks that name the bad line, written
   back from a race. A trace may come from a stranger: it is refused wherever `trace check` refuses it (records.py and
   report/trace.py say the same), and nothing of it is ever markup. */

import { PHASES } from './fold.js';
import { W } from './words.js';

const SCHEMA = 1;
const ORIGINS = ['draft', 'relaxed', 'target'];
const STOPS = ['eos', 'length', 'cancelled', 'error'];
const PICTURE = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/;
export const MOST_BYTES = 64 * (1 << 20);
const MOST_LINE = 8 * (1 << 20);
const MOST_LINES = 100_000;
const MOST_LANES = 32;
const MOST_DEEP = 32;
const MOST_PROMPT = 2 ** 24;
const MOST_PATCHES = 2 ** 20;

/* Types of values, as the records have them. */
const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const text = (v) => typeof v === 'string' && v.isWellFormed?.() !== false;
const whole = (v) => Number.isInteger(v) && Math.abs(v) < 2 ** 63;
const number = (v) => typeof v === 'number' && Math.abs(v) < 1e300;
const flag = (v) => typeof v === 'boolean';
const any = (v) => shallow(v, MOST_DEEP);
const maybe = (type) => (v) => v === null || type(v);
const list = (type) => (v) => Array.isArray(v) && v.every(type);
const map = (type) => (v) => isObject(v) && Object.entries(v).every(([key, item]) => text(key) && type(item));
const oneOf = (...names) => (v) => names.includes(v);
const shape = (needed, optional = {}) => (v) => isObject(v) && Object.keys(v).every((key) => Object.hasOwn(needed, key) || Object.hasOwn(optional, key))
  && Object.entries(needed).every(([key, type]) => Object.hasOwn(v, key) && type(v[key]))
  && Object.entries(optional).every(([key, type]) => !Object.hasOwn(v, key) || type(v[key]));

function shallow(v, levels) {
  if (typeof v !== 'object' || v === null) return true;
  return levels > 0 && Object.values(v).every((item) => shallow(item, levels - 1));
}

const KIND = { kind: text };
const SECONDS = Object.fromEntries(PHASES.map((phase) => [phase, number]));
const candidates = list(list(shape({ id: whole, text, prob: number })));
const TYPES = {
  begin: shape({ ...KIND, request: text, lane: text, method: text, title: text, settings: map(any), lossless: flag, pair: text,
    models: map(maybe(text)), sampling: map(any), max_new_tokens: whole, dtype: text, device: text, versions: map(text), prompt: text,
    n_prompt: whole, n_visual: whole, vision_s: number, prefill_s: number, draft_prefill_s: number,
    spans: list(shape({ kind: oneOf('image', 'video'), media: whole, frame: whole, start: whole, stop: whole }, { rows: maybe(whole), cols: maybe(whole) })) },
  { seen: list(shape({ view: text, n: whole, index: list(whole) }, { words: text })), notes: map(any), schema: whole }),
  round: shape({ ...KIND, ...SECONDS, lane: text, index: whole, path: list(whole), clock_s: number,
    tokens: list(shape({ id: whole, text, origin: oneOf(...ORIGINS) })),
    tree: shape({ tokens: list(whole), parent: list(whole) },
      { texts: maybe(list(text)), draft_logp: maybe(list(maybe(number))), target_logp: maybe(list(maybe(number))) }) },
  { candidates: maybe(candidates), views: maybe(map(candidates)), notes: map(any) }),
  end: shape({ ...KIND, lane: text, stop: oneOf(...STOPS),
    totals: shape({}, { n_tokens: whole, n_rounds: whole, n_accepted: whole, n_relaxed: whole, n_drafted: whole, ...SECONDS }) },
  { peak_bytes: maybe(whole), message: maybe(text) }),
};

/** Records of a trace; throws an Error whose message says which line is wrong and why. */
export function parse(written) {
  if (written.length > MOST_BYTES) throw new Error(W.trace.tooLarge);
  const lines = written.split('\n');
  if (lines.length > MOST_LINES) throw new Error(W.trace.tooMany(MOST_LINES));
  const records = [];
  const lanes = new Map();
  lines.forEach((line, i) => {
    if (!line.trim()) return;
    if (line.length > MOST_LINE) throw new Error(W.trace.line(i + 1, W.trace.tooLong));
    let record;
    try { record = JSON.parse(line); } catch { throw new Error(W.trace.notJson(i + 1)); }
    const wrong = check(record, lanes);
    if (wrong) throw new Error(W.trace.line(i + 1, wrong));
    records.push(record);
  });
  if (!lanes.size) throw new Error(W.trace.nothing);
  for (const [name, lane] of lanes) {
    if (lane.totals.n_tokens > lane.begin.max_new_tokens) throw new Error(W.trace.totals(name, 'n_tokens'));
    if (lane.begin.lossless && lane.totals.n_relaxed) throw new Error(W.trace.totals(name, 'n_relaxed'));
    const told = lane.end?.totals;
    for (const [key, sum] of Object.entries(told ? lane.totals : {})) {
      if (!close(told[key] ?? 0, sum)) throw new Error(W.trace.totals(name, key));
    }
  }
  return records;
}

function check(r, lanes) {
  if (!isObject(r) || !Object.hasOwn(TYPES, r.kind)) return W.trace.kind;
  if (typeof r.lane !== 'string') return W.trace.lane;
  if (r.kind === 'begin') {
    if (r.schema !== SCHEMA) return W.trace.schema(r.schema, SCHEMA);
    if (lanes.has(r.lane)) return W.trace.twice;
    if (!TYPES.begin(r) || !soundBegin(r)) return W.trace.incomplete;
    if (lanes.size >= MOST_LANES) return W.trace.lanes(MOST_LANES);
    r.seen ??= [];
    r.notes ??= {};
    const zero = Object.fromEntries(['n_tokens', 'n_rounds', 'n_accepted', 'n_relaxed', 'n_drafted', ...PHASES].map((key) => [key, 0]));
    lanes.set(r.lane, { begin: r, end: null, clock: 0, totals: zero });
    return null;
  }
  const lane = lanes.get(r.lane);
  if (!lane) return W.trace.before;
  if (lane.end) return W.trace.after;
  if (!TYPES[r.kind](r)) return W.trace.incomplete;
  if (r.kind === 'end') {
    lane.end = r;
    return null;
  }
  if (r.index !== lane.totals.n_rounds) return W.trace.order;
  if (!soundRound(r)) return W.trace.incomplete;
  r.notes ??= {};
  add(lane.totals, r);
  lane.clock += PHASES.reduce((sum, phase) => sum + r[phase], 0);
  return close(lane.clock, r.clock_s) ? null : W.trace.clock;
}

function soundBegin(b) {
  return b.n_prompt >= 1 && b.n_prompt <= MOST_PROMPT && b.n_visual >= 0 && b.n_visual <= b.n_prompt
    && b.spans.every((s) => s.start >= 0 && s.start < s.stop && s.stop <= b.n_prompt
      && (s.rows ?? 1) >= 1 && (s.cols ?? 1) >= 1 && (s.rows ?? 1) * (s.cols ?? 1) <= MOST_PATCHES);
}

function soundRound(r) {
  const { tokens, parent, texts, draft_logp: draft, target_logp: target } = r.tree;
  const size = tokens.length;
  const drafted = r.tokens.filter((t) => t.origin !== 'target');
  return size >= 1 && parent.length === size && parent.every((p, i) => (i === 0 ? p === -1 : p >= 0 && p < i))
    && [texts, draft, target].every((values) => !values || values.length === size)
    && r.tokens.length > 0 && r.tokens.slice(0, -1).every((t) => t.origin !== 'target')
    && r.path[0] === 0 && r.path.every((node, i) => i === 0 || (node > 0 && node < size && parent[node] === r.path[i - 1]))
    && r.path.length === 1 + drafted.length && drafted.every((t, i) => t.id === tokens[r.path[i + 1]])
    && [r.candidates, ...Object.values(r.views ?? {})].every((lists) => !lists || lists.length === r.tokens.length)
    && PHASES.every((phase) => r[phase] >= 0);
}

function add(totals, r) {
  totals.n_tokens += r.tokens.length;
  totals.n_rounds += 1;
  totals.n_accepted += r.path.length - 1;
  totals.n_relaxed += r.tokens.filter((t) => t.origin === 'relaxed').length;
  totals.n_drafted += r.tree.tokens.length - 1;
  for (const phase of PHASES) totals[phase] += r[phase];
}

const close = (a, b) => a === b || Math.abs(a - b) <= Math.max(1e-6 * Math.max(Math.abs(a), Math.abs(b)), 1e-9);

/** The records of a recorded race on this server; throws an Error that can be shown. */
export async function fetched(url) {
  const answer = await fetch(url).catch(() => null);
  if (!answer?.ok) throw new Error(W.trace.unreachable);
  return parse(await answer.text());
}

/** What the model was shown, as a Begin carries it: [{name, frames: [url]}]; anything but base64 pictures is left out. */
export function shown(begin) {
  const list = begin.notes.media;
  if (!Array.isArray(list)) return [];
  const safe = (url) => (typeof url === 'string' && PICTURE.test(url) ? url : null);
  return list.map((m) => ({ name: String(m?.name ?? ''), frames: Array.isArray(m?.frames) ? m.frames.map(safe) : [] }));
}

/** Records as a trace, one JSON object a line. */
export function write(records) {
  return `${records.map((record) => JSON.stringify(record)).join('\n')}\n`;
}

/** All records of a race, lane after lane. */
export function recordsOf(race) {
  return race.list.flatMap((lane) => [lane.begin, ...lane.rounds, ...(lane.end ? [lane.end] : [])]);
}

/** Hand the visitor a file. */
export function download(name, content, type = 'application/jsonl') {
  const a = document.createElement('a');
  a.href = URL.createObjectURL(new Blob([content], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}
