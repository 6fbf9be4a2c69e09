/* Colours of methods. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { coloursOf } from '../../specvl_demo/ui/assets/js/state/colours.js';

test('methods in sight keep their colours, and all that stand side by side differ', () => {
  assert.deepEqual(coloursOf(['ar', 'sage']), [0, 3]);
  assert.deepEqual(coloursOf(['ar', 'dream', 'sage']), [0, 6, 3]);
  assert.deepEqual(coloursOf(['ar', 'tree', 'chain']), [0, 2, 1]);
  const six = coloursOf(['ar', 'fly', 'tree', 'eagle2', 'tabed', 'sage', 'sage']);
  assert.equal(new Set(six).size, 7);
  assert.equal(six[5], 3);
  assert.ok(coloursOf(Array(9).fill('fly')).every((number) => number >= 1 && number <= 6));
});
