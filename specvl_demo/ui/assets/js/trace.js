/* Traces: JSON lines of records, as the engine writes them. Read from text with checks that name the bad line, written
   back from a race. A trace may come from a stranger: only known kinds pass, and nothing of it is ever markup. */

import { PHASES } from './fold.js';
import { W } from './words.js';

const SCHEMA = 1;
const ORIGINS = ['draft', 'relaxed', 'target'];
const PICTURE = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/;
export const MOST_BYTES = 64 * (1 << 20);

/** Records of a trace; throws an Error whose message says which line is wrong and why. */
export function parse(text) {
  if (text.length > MOST_BYTES) throw new Error(W.trace.tooLarge);
  const records = [];
  const lanes = new Map();
  text.split('\n').forEach((line, i) => {
    if (!line.trim()) return;
    let record;
    try { record = JSON.parse(line); } catch { throw new Error(W.trace.notJson(i + 1)); }
    const wrong = check(record, lanes);
    if (wrong) throw new Error(W.trace.line(i + 1, wrong));
    records.push(record);
  });
  if (!lanes.size) throw new Error(W.trace.nothing);
  return records;
}

function check(r, lanes) {
  if (!r || typeof r !== 'object' || !['begin', 'round', 'end'].includes(r.kind)) return W.trace.kind;
  if (typeof r.lane !== 'string') return W.trace.lane;
  if (r.kind === 'begin') {
    if (r.schema !== SCHEMA) return W.trace.schema(r.schema, SCHEMA);
    if (lanes.has(r.lane)) return W.trace.twice;
    const numbers = [r.max_new_tokens, r.n_prompt, r.vision_s, r.prefill_s, r.draft_prefill_s];
    if (!numbers.every(Number.isFinite) || !Array.isArray(r.spans) || typeof r.title !== 'string') return W.trace.incomplete;
    r.seen ??= [];
    r.notes ??= {};
    lanes.set(r.lane, { n: 0 });
    return null;
  }
  const lane = lanes.get(r.lane);
  if (!lane) return W.trace.before;
  if (r.kind === 'end') return r.totals && typeof r.stop === 'string' ? null : W.trace.incomplete;
  const size = r.tree?.tokens?.length;
  const sound = Number.isInteger(size) && size > 0 && r.tree.parent?.length === size
    && r.tree.parent.every((p, i) => (i === 0 ? p === -1 : Number.isInteger(p) && p >= 0 && p < i))
    && Array.isArray(r.tokens) && r.tokens.length > 0
    && r.tokens.every((t) => typeof t.text === 'string' && ORIGINS.includes(t.origin))
    && Array.isArray(r.path) && r.path[0] === 0 && r.path.every((n) => Number.isInteger(n) && n >= 0 && n < size)
    && [...PHASES, 'clock_s'].every((p) => Number.isFinite(r[p]) && r[p] >= 0);
  if (!sound) return W.trace.incomplete;
  if (r.index !== lane.n) return W.trace.order;
  r.notes ??= {};
  lane.n += 1;
  return null;
}

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
export function text(records) {
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
