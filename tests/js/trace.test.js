/* Traces read from text and written back: what the program refuses is refused, in a sentence. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { brief, parse, recordsOf, shown, write } from '../../specvl_demo/ui/assets/js/trace.js';
import { TRACES, fold, tell, told } from './page.js';

/** Why a text is refused; null if it is a trace. */
function refusal(text) {
  try {
    parse(text);
    return null;
  } catch (fault) {
    assert.equal(fault.constructor, Error, fault.stack); // any other kind fell over
    return fault.message;
  }
}

test('shipped traces are read, written and read again', () => {
  for (const [name, text] of TRACES) {
    const records = parse(text);
    assert.deepEqual(parse(write(records)), records, name);
    assert.equal(recordsOf({ list: fold(records) }).length, records.length, name);
  }
});

test('a bad line is named, and what is wrong with it', () => {
  const [begin, first, ...rest] = TRACES[0][1].trim().split('\n');
  assert.match(refusal(`${begin}\n{`), /line 2/i);
  assert.match(refusal(`${begin}\n${begin}`), /line 2/i);
  assert.match(refusal(`${begin}\n${rest.at(-1)}\n${rest.at(-1)}`), /line 3/i);
  assert.ok(refusal(''));
  assert.ok(refusal(first.replace('"kind":"', '"kind":"x')));
});

test('pictures are data of pictures and nothing else', () => {
  const frames = ['data:image/png;base64,AAAA', 'javascript:hit=1', null, 'data:text/html,x'];
  const [{ frames: safe }] = shown({ notes: { media: [{ name: 'a', frames }] } });
  assert.deepEqual(safe, [frames[0], null, null, null]);
});

test('the program refuses the same texts', { skip: !told('traces') }, () => {
  const apart = told('traces').filter(([text, sound]) => (refusal(text) === null) !== sound);
  assert.deepEqual(apart.map(([text]) => text.slice(0, 200)), []);
});

test('what is sent to be compared is brief', { skip: !told('races') }, () => {
  const texts = [...told('races').map(({ text }) => text), ...TRACES.map(([, text]) => text)];
  const sent = texts.map((text) => [text, brief(parse(text)), write(parse(text))]);
  for (const [, few, whole] of sent) assert.ok(few.length < whole.length);
  tell('briefs', sent);
});
