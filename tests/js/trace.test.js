/* Traces read from text and written back. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { parse, recordsOf, shown, write } from '../../specvl_demo/ui/assets/js/records/trace.js';
import { TRACES, fold } from './page.js';

test('shipped traces are read, written and read again', () => {
  for (const [name, text] of TRACES) {
    const records = parse(text);
    assert.deepEqual(parse(write(records)), records, name);
    assert.equal(recordsOf({ list: fold(records) }).length, records.length, name);
  }
});

test('pictures are data of pictures and nothing else', () => {
  const frames = ['data:image/png;base64,AAAA', 'javascript:hit=1', null, 'data:text/html,x'];
  const [{ frames: safe }] = shown({ notes: { media: [{ name: 'a', frames }] } });
  assert.deepEqual(safe, [frames[0], null, null, null]);
});
