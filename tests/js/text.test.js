/* Questions outside a pair's scope, letters made safe, and how much is drawn. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { Drawing, paceFor } from '../../specvl_demo/ui/assets/js/state/drawing.js';
import { better, scope } from '../../specvl_demo/ui/assets/js/state/scope.js';
import { laid, forPlotly } from '../../specvl_demo/ui/assets/js/records/text.js';

const PAIRS = [
  { id: 'p', knows: 'scenes', words: ['what', 'the', 'star'], available: true },
  { id: 'snap', knows: 'photographs', words: null, available: true },
];
const EXAMPLES = [
  { id: 'scene', pair: 'p' },
  { id: 'cat', pair: 'snap' },
];
const CATALOG = { pairs: PAIRS, examples: EXAMPLES };
const MINE = { name: 'cat.jpg' };
const SCENE = { name: 'scene.png', example: 'scene' };
const CAT = { name: 'cat.jpg', example: 'cat' };
const asked = (question, media, pair = 'p', history = []) => ({ pair, question, media, history });

test('what lies outside a pair’s scope is told, and the pair that was made for it', () => {
  const cases = [
    [asked('What stars?', [SCENE]), ''],
    [asked('What is the capital?', [SCENE]), 'not trained on “capital”'],
    [asked('What?', [MINE]), 'cat.jpg may be something else. If so'],
    [asked('What?', [CAT]), 'cat.jpg may be something else. The race is real'],
    [asked('What?', []), 'only drawn scenes, and there is none'],
    [asked('What?', [], 'snap'), 'describes photographs, and there is none'],
    [asked('What?', [SCENE], 'snap'), 'cannot read drawings: scene.png'],
    [asked('What?', [MINE], 'snap'), ''],
    [asked('what '.repeat(61), [SCENE]), 'this one has 61 words'],
    [asked('What?', [], 'p', [{ media: [SCENE] }]), ''],
    [asked('Anything?', [], 'nope'), ''],
  ];
  for (const [request, words] of cases) {
    const found = scope({ catalog: CATALOG, request });
    assert.ok(words ? found.includes(words) : found === '', `${request.question}: ${found}`);
  }
  assert.equal(better({ catalog: CATALOG, request: asked('What?', [MINE]) })?.id, 'snap');
  assert.equal(better({ catalog: CATALOG, request: asked('What?', []) })?.id, 'snap');
  assert.equal(better({ catalog: CATALOG, request: asked('What?', [SCENE]) }), undefined);
  assert.equal(better({ catalog: CATALOG, request: asked('What?', [SCENE], 'snap') })?.id, 'p');
  assert.equal(better({ catalog: { ...CATALOG, pairs: PAIRS.slice(0, 1) }, request: asked('?', [MINE]) }), undefined);
});

test('strangers’ letters are few, marks are not piled up, tags stay words', () => {
  assert.equal(laid('x'.repeat(5000)), `${'x'.repeat(200)}…`);
  assert.equal(laid(`z${'\u0301'.repeat(50)}`), `z${'\u0301'.repeat(4)}`);
  assert.equal(laid(' a   b\t'), ' a\u00a0\u00a0\u00a0b\u00a0'); // a single space can end a line
  assert.equal(forPlotly('<b>&'), '&lt;b>&amp;');
  assert.equal(forPlotly(7), 7);
});

test('the pace follows from what drawing was measured to cost', () => {
  assert.equal(paceFor(0.01, 0), 'full'); // a browser elsewhere, with a graphics card
  assert.equal(paceFor(0.01, 0.6), 'steady'); // a slow one
  assert.equal(paceFor(0.08, 0), 'steady');
  assert.equal(paceFor(0.26, 0), 'calm'); // two cores, one half of them drawing
  const drawing = new Drawing();
  const paces = [0.05, 0.3, 0.3].map((share) => {
    drawing.learn(drawing.name, share);
    return drawing.name;
  });
  assert.deepEqual(paces, ['calm', 'undrawn', 'undrawn']);
});
