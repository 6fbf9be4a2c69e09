/* The live stream: batches in order, none of a run that is over. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { Lane } from '../../specvl_demo/ui/assets/js/records/fold.js';
import { Runner } from '../../specvl_demo/ui/assets/js/state/runner.js';
import { Stream } from '../../specvl_demo/ui/assets/js/state/stream.js';
import { round } from './page.js';

const batch = (run, seq) =>
  JSON.stringify({ run, seq, events: [{ k: 'round', record: `${run}${seq}` }] });

/** A stream, and what it gave of every record. */
function listening() {
  const heard = [];
  return { heard, stream: new Stream({ record: (event) => heard.push(event.record) }) };
}

test('batches count once and in order', () => {
  const { heard, stream } = listening();
  for (const seq of [0, 1, 1, 0, 2]) stream.feed(batch('a', seq));
  stream.feed('');
  assert.deepEqual(heard, ['a0', 'a1', 'a2']);
});

test('nothing of a finished run that comes during the next counts there', () => {
  const { heard, stream } = listening();
  stream.feed(batch('a', 0));
  stream.reset();
  for (const [run, seq] of [['a', 1], ['b', 0], ['a', 2], ['b', 1]]) stream.feed(batch(run, seq));
  assert.deepEqual(heard, ['a0', 'b0', 'b1']);
});

test('a hundred rounds a second with trees of 64 nodes, as from a GPU, keep up', () => {
  const made = new Lane({ lane: 'dream', vision_s: 0, prefill_s: 0, draft_prefill_s: 0 });
  const stream = new Stream({ record: ({ record }) => made.add(record) });
  const nodes = Array.from({ length: 64 }, (_, i) => i);
  const tree = {
    tokens: nodes,
    texts: nodes.map((i) => ` word${i}`),
    parent: nodes.map((i) => (i ? (i - 1) >> 1 : -1)),
    draft_logp: nodes.map((i) => (i ? -i / 64 : null)),
  };
  const batches = Array.from({ length: 500 }, (_, seq) => {
    const record = round(seq, { kept: 'abcde', own: 'x', tree, lane: 'dream' });
    return JSON.stringify({ run: 'a', seq, events: [{ k: 'round', record }] });
  });
  const before = process.cpuUsage();
  for (const text of batches) {
    stream.feed(text);
    made.totalsAfter(Infinity);
  }
  const { user, system } = process.cpuUsage(before); // in µs: what others compute does not count
  const { n_rounds, n_tokens } = made.totalsAfter(Infinity);
  assert.deepEqual([n_rounds, n_tokens], [500, 3000]);
  assert.ok((user + system) / 500 < 2500, `${(user + system) / 500} µs a round, of 10,000`);
});

test('every wait is said: the place in the line, loading, reading the prompt', async () => {
  const said = [];
  const api = { watch() {}, trigger() {}, server: { stop_run: async () => null } };
  const runner = new Runner(api);
  const run = runner.run({}, { status: (text) => said.push(text), record() {} });
  const events = [
    { k: 'queue', place: 3 },
    { k: 'queue', place: 1 },
    { k: 'status', stage: 'loading', detail: 'Fetching x: 1.0 of 2.0 GB' },
    { k: 'status', stage: 'media' },
    { k: 'status', stage: 'prefill' },
    { k: 'error', text: 'This picture is too large.' },
    { k: 'done' },
  ];
  events.forEach((event, seq) => runner.stream.feed(JSON.stringify({ run: 'r', seq, events: [event] })));
  const waits = [
    /^Starting the engine…$/,
    /^Waiting: number 3 in line\.$/,
    /^Waiting: you are next\.$/,
    /1\.0 of 2\.0 GB/,
    /^Opening the pictures…$/,
    /^Reading the pictures and the question…$/,
  ];
  assert.equal(said.length, waits.length);
  waits.forEach((pattern, i) => assert.match(said[i], pattern));
  assert.equal(await run, 'This picture is too large.');
});
