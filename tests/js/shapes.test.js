/* Shapes of trees, and what a drafter saw, as numbers to draw. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { contrast, instead, winner } from '../../specvl_demo/ui/assets/js/records/looks.js';
import { shapeOf } from '../../specvl_demo/ui/assets/js/records/shapes.js';

const token = (id, origin = 'draft') => ({ id, text: String(id), origin });

test('a tree has a depth, a width, and its kept path first', () => {
  const tree = { tokens: [0, 1, 2, 3, 4], parent: [-1, 0, 0, 2, 2] };
  const tokens = [token(2), token(4, 'relaxed'), token(9, 'target')];
  const shape = shapeOf({ tree, path: [0, 2, 4], tokens });
  assert.deepEqual([shape.deep, shape.wide], [2, 3]);
  assert.deepEqual([shape.kept.length, shape.relaxed.length, shape.idle.length], [1, 1, 2]);
  const [[, [row, depth]]] = shape.relaxed;
  assert.deepEqual([row, depth], [0, 2]); // the leaf that was kept stands first
  const chain = shapeOf({ tree: { tokens: [0, 1, 2], parent: [-1, 0, 1] }, path: [0], tokens });
  assert.deepEqual([chain.deep, chain.wide, chain.idle.length, chain.rejected.length], [2, 1, 1, 1]);
});

test('a map shows what was looked at more than usual', () => {
  const always = [200, 10, 10, 10]; // a place that every token looks at
  const looks = [200, 10, 40, 10];
  const found = contrast(looks, [looks, always, always]);
  assert.equal(found.indexOf(Math.max(...found)), 2);
  assert.ok(found[0] < 0.2);
  assert.deepEqual(contrast([5, 5], [[5, 5]]), [0, 0]);
  const alone = contrast([0, 9, 3], [[0, 9, 3]]);
  assert.deepEqual([alone[0], alone[1]], [0, 1]);
});

test('the view that gave an accepted word most is told, and the word in place of a relaxed one', () => {
  const charts = [{ series: [{ path: 'notes.weights' }], tint: 'views' }];
  const likely = (prob) => [[{ id: 1, text: 'a', prob }]];
  const round = {
    tokens: [token(1)],
    views: { picture: likely(0.3), text: likely(0.9) },
    notes: { weights: { picture: 0.8, text: 0.2 } },
    candidates: [[{ id: 7, text: ' no', prob: 0.6 }]],
  };
  assert.deepEqual(winner({ begin: { charts } }, round, 0), { view: 'picture', place: 0 });
  const other = { ...round, notes: { weights: { picture: 0.2, text: 0.8 } } };
  assert.deepEqual(winner({ begin: { charts } }, other, 0), { view: 'text', place: 1 });
  assert.equal(winner({ begin: { charts: [] } }, round, 0), null);
  assert.equal(winner({ begin: { charts: [{ series: [], tint: 'views' }] } }, round, 0), null); // of a stranger's trace
  assert.equal(winner({ begin: { charts } }, { ...round, tokens: [token(1, 'target')] }, 0), null);
  assert.equal(instead(round, 0), null);
  assert.equal(instead({ ...round, tokens: [token(1, 'relaxed')] }, 0), ' no');
});
