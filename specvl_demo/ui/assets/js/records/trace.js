/* Traces: JSON lines of records. The server checks strangers' first (report/trace.py). */

import { W } from '../words/words.js';

const PICTURE = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+$/;

/** @param {string} written @returns {AnyRecord[]} */
export function parse(written) {
  const lines = written.split('\n').filter((line) => line.trim());
  return lines.map((line) => {
    const record = JSON.parse(line);
    // What records of earlier versions may lack.
    if (record.kind === 'begin') return { seen: [], charts: [], notes: {}, ...record };
    return record.kind === 'round' ? { notes: {}, ...record } : record;
  });
}

/** The records at an address; an Error has a sentence to show. @param {string} url */
export async function fetched(url) {
  const answer = await fetch(url).catch(() => null);
  if (!answer?.ok) throw new Error(W.trace.unreachable);
  return parse(await answer.text());
}

/** The pictures that the model was shown, if they are base64. @param {Begin} begin */
export function shown(begin) {
  /** @param {string | null} url */
  const safe = (url) => (url !== null && PICTURE.test(url) ? url : null);
  return (begin.notes?.media ?? []).map((m) => ({ name: m.name, frames: m.frames.map(safe) }));
}

/** The Begin of the first lane. @param {AnyRecord[]} records */
export const first = (records) => /** @type {Begin} */ (records.find((r) => r.kind === 'begin'));

/** @param {AnyRecord[]} records */
export function write(records) {
  return `${records.map((record) => JSON.stringify(record)).join('\n')}\n`;
}

/** @param {Race} race */
export function recordsOf(race) {
  return race.list.flatMap((lane) => [lane.begin, ...lane.rounds, ...(lane.end ? [lane.end] : [])]);
}
