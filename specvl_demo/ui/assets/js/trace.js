/* Traces: JSON lines of records, as the engine writes them. Read from text with checks that name the bad line, written
   back from a race. A trace may come from a stranger: it is refused wherever `trace check` refuses it, and nothing of it
   is ever markup. `schema.js` is exported from records.py; what lies between fields and records is checked here. */

import { PHASES, ZERO, plus } from './fold.js';
import SCHEMA from './schema.js';
import { W } from './words.js';

const PICTURE = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/;
export const MOST_BYTES = 64 * (1 << 20);
const MOST_LINE = 8 * (1 << 20);
const MOST_LINES = 100_000;
const MOST_LANES = 32;
const MOST_PATCHES = 2 ** 20;
const [FORMAT] = SCHEMA.$defs.Begin.properties.schema.enum;

/** Names of the totals in a record, and in a fold. */
const TOTALS = [
  ...['tokens', 'rounds', 'accepted', 'relaxed', 'drafted'].map((name) => [`n_${name}`, name]),
  ...PHASES.map((phase) => [phase, phase]),
];

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const TYPES = {
  object: isObject,
  array: Array.isArray,
  string: (v) => typeof v === 'string' && v.isWellFormed?.() !== false,
  integer: Number.isInteger,
  number: (v) => typeof v === 'number',
  boolean: (v) => typeof v === 'boolean',
  null: (v) => v === null,
};

/** Where a value breaks a JSON Schema, as a dotted path; null where it keeps it. Knows the words that schema.js uses. */
export function breach(v, s, at) {
  if (s.$ref) return breach(v, SCHEMA.$defs[s.$ref.split('/').pop()], at);
  if (s.anyOf) return s.anyOf.some((one) => breach(v, one, at) === null) ? null : at;
  if (s.enum && !s.enum.includes(v)) return at;
  if (s.type && !TYPES[s.type](v)) return at;
  if (v < s.minimum || v > s.maximum || v?.length < s.minItems || v?.length > s.maxItems) return at;
  if (s.type === 'array')
    return first(v, (item, i) => breach(item, s.prefixItems?.[i] ?? s.items, `${at}[${i}]`));
  if (s.type !== 'object') return null;
  const missing = s.required?.find((key) => !Object.hasOwn(v, key));
  if (missing) return `${at}.${missing}`;
  return first(Object.entries(v), ([key, item]) => {
    const inner =
      s.properties && Object.hasOwn(s.properties, key) ? s.properties[key] : s.additionalProperties;
    return inner && TYPES.string(key) ? breach(item, inner, `${at}.${key}`) : `${at}.${key}`;
  });
}

function first(list, wrong) {
  for (let i = 0; i < list.length; i += 1) {
    const found = wrong(list[i], i);
    if (found !== null) return found;
  }
  return null;
}

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
    try {
      record = JSON.parse(line);
    } catch {
      throw new Error(W.trace.notJson(i + 1));
    }
    const wrong = check(record, lanes);
    if (wrong) throw new Error(W.trace.line(i + 1, wrong));
    records.push(record);
  });
  if (!lanes.size) throw new Error(W.trace.nothing);
  for (const [name, lane] of lanes) {
    const { begin, end, totals } = lane;
    if (totals.tokens > begin.max_new_tokens) throw new Error(W.trace.totals(name, 'n_tokens'));
    if (begin.lossless && totals.relaxed) throw new Error(W.trace.totals(name, 'n_relaxed'));
    for (const [told, own] of end ? TOTALS : [])
      if (!close(end.totals[told] ?? 0, totals[own])) throw new Error(W.trace.totals(name, told));
  }
  return records;
}

function check(r, lanes) {
  const name =
    isObject(r) &&
    Object.hasOwn(SCHEMA.discriminator.mapping, r.kind) &&
    SCHEMA.discriminator.mapping[r.kind];
  if (!name) return W.trace.kind;
  if (r.kind === 'begin' && Number.isInteger(r.schema) && r.schema !== FORMAT)
    return W.trace.format(r.schema, FORMAT);
  const wrong = breach(r, { $ref: name }, r.kind);
  if (wrong) return W.trace.field(wrong.slice(0, 80));
  if (r.kind === 'begin') {
    if (lanes.has(r.lane)) return W.trace.twice;
    if (!soundBegin(r)) return W.trace.incomplete;
    if (lanes.size >= MOST_LANES) return W.trace.lanes(MOST_LANES);
    Object.assign(r, { seen: r.seen ?? [], charts: r.charts ?? [], notes: r.notes ?? {} });
    lanes.set(r.lane, { begin: r, end: null, clock: 0, totals: ZERO });
    return null;
  }
  const lane = lanes.get(r.lane);
  if (!lane) return W.trace.before;
  if (lane.end) return W.trace.after;
  if (r.kind === 'end') {
    lane.end = r;
    return null;
  }
  if (r.index !== lane.totals.rounds) return W.trace.order;
  if (!soundRound(r)) return W.trace.incomplete;
  r.notes ??= {};
  lane.totals = plus(lane.totals, r);
  lane.clock += PHASES.reduce((sum, phase) => sum + r[phase], 0);
  return close(lane.clock, r.clock_s) ? null : W.trace.clock;
}

function soundBegin(b) {
  return (
    b.n_visual <= b.n_prompt &&
    b.spans.every(
      (s) =>
        s.start < s.stop && s.stop <= b.n_prompt && (s.rows ?? 1) * (s.cols ?? 1) <= MOST_PATCHES,
    )
  );
}

function soundRound(r) {
  const { tokens, parent, texts, draft_logp: draft, target_logp: target } = r.tree;
  const size = tokens.length;
  const drafted = r.tokens.filter((t) => t.origin !== 'target');
  return (
    parent.length === size &&
    parent.every((p, i) => (i === 0 ? p === -1 : p >= 0 && p < i)) &&
    [texts, draft, target].every((values) => !values || values.length === size) &&
    r.tokens.slice(0, -1).every((t) => t.origin !== 'target') &&
    r.path[0] === 0 &&
    r.path.every(
      (node, i) => i === 0 || (node > 0 && node < size && parent[node] === r.path[i - 1]),
    ) &&
    r.path.length === 1 + drafted.length &&
    drafted.every((t, i) => t.id === tokens[r.path[i + 1]]) &&
    [r.candidates, ...Object.values(r.views ?? {})].every(
      (lists) => !lists || lists.length === r.tokens.length,
    )
  );
}

const close = (a, b) =>
  a === b || Math.abs(a - b) <= Math.max(1e-6 * Math.max(Math.abs(a), Math.abs(b)), 1e-9);

/** The records of a recorded race on this server; throws an Error whose message can be shown. */
export async function fetched(url) {
  const answer = await fetch(url).catch(() => null);
  if (!answer?.ok) throw new Error(W.trace.unreachable);
  return parse(await answer.text());
}

/** What the model was shown, as a Begin carries it: [{name, frames: [url]}]; anything but base64 pictures is left out. */
export function shown(begin) {
  const safe = (url) => (url !== null && PICTURE.test(url) ? url : null);
  return (begin.notes.media ?? []).map((m) => ({ name: m.name, frames: m.frames.map(safe) }));
}

/** Records as a trace, one JSON object a line. */
export function write(records) {
  return `${records.map((record) => JSON.stringify(record)).join('\n')}\n`;
}

/** As much of a trace as the comparison of its lanes needs: no pictures, no question, no rival drafts, and the candidates
 *  of AR alone. */
export function brief(records) {
  const plain = new Set(records.filter((r) => r.method === 'ar').map((r) => r.lane));
  const rounds = ({ views, candidates, notes: { draws }, tree: { tokens, parent }, ...rest }) => ({
    ...rest,
    tree: { tokens, parent },
    candidates: plain.has(rest.lane) ? candidates : null,
    notes: draws ? { draws } : {},
  });
  const begins = ({ seen, charts, notes, ...rest }) => ({ ...rest, prompt: '', settings: {} });
  const of = { begin: begins, round: rounds, end: (end) => end };
  return write(records.map((record) => of[record.kind](record)));
}

/** All records of a race, lane after lane. */
export function recordsOf(race) {
  return race.list.flatMap((lane) => [lane.begin, ...lane.rounds, ...(lane.end ? [lane.end] : [])]);
}

/** Offer the visitor a file to download. */
export function download(name, content, type = 'application/jsonl') {
  const a = document.createElement('a');
  a.href = URL.createObjectURL(new Blob([content], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10_000);
}
