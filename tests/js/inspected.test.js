/* What the inspector tells of tokens and nodes, of the shipped races and of one made by hand. */

import assert from 'node:assert/strict';
import test from 'node:test';
import {
  chancesOf,
  drawOf,
  likeliest,
  noted,
  whyUnused,
  whyWritten,
} from '../../specvl_demo/ui/assets/js/records/inspected.js';
import { W } from '../../specvl_demo/ui/assets/js/words/words.js';
import { lane, shipped } from './page.js';

/** A lane of one round: of a, b, c the first was kept; beside b stood x, and the target wrote z. */
function made(more = {}) {
  const chain = lane([{ kept: 'a', drafted: 'abc', own: 'z' }]);
  Object.assign(chain.begin, { sampling: {}, charts: [] });
  const [round] = chain.rounds;
  const half = Math.log(0.5);
  Object.assign(round, { notes: {}, ...more });
  Object.assign(round.tree, {
    tokens: [0, 97, 98, 99, 120],
    parent: [-1, 0, 1, 2, 1],
    texts: ['', 'a', 'b', 'c', 'x'],
    draft_logp: [null, half, half, half, Math.log(0.25)],
    target_logp: [null, half, Math.log(0.125), null, null],
  });
  return { chain, round };
}

test('every token of a shipped race says why it is there, every other node why it is not', () => {
  for (const own of ['scene', 'count', 'garden'].flatMap(shipped)) {
    for (const i of own.tokens.keys()) assert.match(whyWritten(own, i), /target|drafter/);
    for (const round of own.rounds)
      for (const node of round.tree.tokens.keys()) {
        if (node && round.path.includes(node)) continue;
        const { kind, why } = whyUnused(own, round, node);
        assert.equal(kind === 'root', node === 0);
        assert.match(why, /decided before|rejected|had ended/);
      }
  }
});

test('a rejected draft has a place in the answer, and what follows it has none', () => {
  const { chain, round } = made();
  assert.deepEqual(
    [0, 2, 3, 4].map((node) => whyUnused(chain, round, node)).map(({ kind, at }) => [kind, at]),
    [['root', -1], ['rejected', 1], ['after', -1], ['rejected', 1]],
  );
  assert.match(whyUnused(chain, round, 3).why, /to come after b, .* preferred z/);
  chain.begin.sampling.temperature = 1;
  assert.match(whyUnused(chain, round, 2).why, /drew z/);
});

test('what was likely at a place: by the target, by every view, and what was drafted', () => {
  const { round } = made();
  const target = [{ id: 122, text: 'z', prob: 0.75 }];
  const bare = likeliest(round, 1, 122);
  assert.deepEqual(bare.columns, ['target', W.inspect.drafter]);
  assert.deepEqual(bare.rows.map(({ text }) => text), ['b', 'x']);
  assert.equal(bare.rows[0].prob.get('target').toFixed(3), '0.125');
  const text = [[], [{ id: 120, text: 'x', prob: 0.5 }]];
  const { columns, rows } = likeliest({ ...round, candidates: [[], target], views: { text } }, 1, 122);
  assert.deepEqual([columns, rows.map((row) => row.text)], [['target', 'text'], ['z', 'b', 'x']]);
  assert.equal(likeliest(round, 3, 0), null);
  const many = Array.from({ length: 30 }, (_, id) => ({ id, text: String(id), prob: (30 - id) / 60 }));
  const few = likeliest({ ...round, candidates: [[], many] }, 1, 29);
  assert.deepEqual([few.rows.length, few.rows.at(-1).id], [8, 29]); // the inspected one is among them
});

test('what is unknown of a draw is null', () => {
  const { round } = made({ notes: { draws: { p: [0.5], gap: [null] } } });
  const [drawn, none] = [0, 1].map((at) => drawOf(round, at));
  assert.deepEqual([drawn, none], [{ target: 0.5, drafter: null, gap: null, overlap: null }, null]);
  assert.deepEqual(chancesOf(round, 4), { target: null, drafter: 0.25 });
});

test('notes have their names, and of lists over nodes the node’s value', () => {
  const notes = { nodes: [1, 2], alpha: [0.25, 2], deep: { text: 0.5 }, on: true, long: Array(20).fill(1) };
  const { chain, round } = made({ notes: { ...notes, secret: 1, why: { on: 'asked' } } });
  chain.begin.charts = [{ series: [{ path: 'notes.alpha', name: 'α' }] }];
  const names = { deep: 'depth', on: 'gate', long: 'values' };
  assert.deepEqual(noted(chain, round, names, 2), [
    ['α', '2', undefined],
    ['depth', 'text only 0.500', undefined],
    ['gate', 'on', 'asked'],
    ['values', `${'1 '.repeat(16)}…`, undefined],
  ]);
  assert.equal(noted(chain, round, names)[0][1], '0.250 2');
  assert.equal(noted(chain, round, names, 4).length, 3); // the list has no value for it
});
