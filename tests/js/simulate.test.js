/* What if: races simulated from recorded ones. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { breakEven, learn, payOff, simulate } from '../../specvl_demo/ui/assets/js/records/simulate.js';
import { TRACES, lane, shipped } from './page.js';

const NAMES = ['scene', 'chart', 'falls', 'garden'];
const learnt = (name) => {
  const [base, other] = shipped(name);
  return { known: learn(other, base), base, other };
};

test('untouched, it gives the recorded race again', () => {
  for (const name of NAMES) {
    const { known } = learnt(name);
    const { tau, speedup } = simulate(known, known);
    assert.ok(Math.abs(tau / known.recorded.tau - 1) < 1e-6, name);
    assert.ok(Math.abs(speedup / known.recorded.speedup - 1) < 1e-6, name);
  }
});

test('a better drafter gains, a dearer one and a crowd lose, and a round writes a token at least', () => {
  for (const name of NAMES) {
    const { known } = learnt(name);
    const speedup = (change) => simulate(known, { ...known, ...change }).speedup;
    const start = speedup({});
    const better = speedup({ quality: 1 });
    assert.ok(better > start, name);
    assert.ok(speedup({ quality: 1, draft: known.draft + 0.5 }) < better, name);
    assert.ok(speedup({ requests: 16, row: 0.05 }) < speedup({ row: 0.05 }), name);
    const hopeless = simulate(known, { ...known, quality: 0 });
    assert.ok(hopeless.tau >= 1 && hopeless.speedup < start, name);
    assert.equal(hopeless.rounds.at(-1).at, known.n);
    const { cost, verify, tau } = simulate(known, { ...known, gamma: 3 });
    assert.ok(Math.abs(verify + 3 * known.draft - cost) < 1e-9 && tau <= 4 * known.fit.most);
  }
});

test('a drafter that is always right keeps whole drafts, and never loses', () => {
  for (const [file] of TRACES) {
    const [base, ...others] = shipped(file.replace('.trace.jsonl', ''));
    for (const known of others.map((other) => learn(other, base))) {
      const { tau, rounds, speedup } = simulate(known, { ...known, quality: 1 });
      assert.ok(tau > known.n / rounds.length - 1e-9 && speedup > known.recorded.speedup - 1e-9, file);
      assert.ok(known.deepest >= known.gamma, file);
    }
  }
});

test('costs follow from the rounds of a lane', () => {
  const rounds = Array.from({ length: 6 }, () => ({ kept: 'ab', drafted: 'abc', own: 'x' }));
  const plain = Array.from({ length: 18 }, () => ({ own: 'x' }));
  const [chain, ar] = [lane(rounds, 'length'), lane(plain, 'length', 'ar').totalsAfter(Infinity)];
  const found = payOff(chain, ar);
  assert.equal(found.tau, 3);
  assert.ok(Math.abs(found.rho - 1) < 1e-9 && Math.abs(found.tau / found.rho - 3) < 1e-9);
  assert.ok(Math.abs(found.fixed + found.perToken * found.drafted - found.rho) < 1e-9);
});

test('a round has one cost, that of the mean timing', () => {
  const [base, other] = shipped('scene');
  const once = learn(other, base).draft;
  other.close({ ...other.end, again: [3 * other.timings[0]] });
  const { draft, recorded } = learn(other, base);
  const { rho } = payOff(other, base.totalsAfter(Infinity));
  assert.ok(Math.abs(rho - recorded.tau / recorded.speedup) < 1e-6);
  assert.ok(Math.abs(draft - 2 * once) < 1e-6);
});

test('it breaks even where its slider says so, or nowhere', () => {
  for (const name of NAMES) {
    const { known } = learnt(name);
    const even = breakEven(known);
    const speedup = (quality) => simulate(known, { ...known, quality }).speedup;
    assert.ok(even <= known.quality && speedup(even) >= 1 && speedup(even - 0.01) < 1, name);
    assert.equal(breakEven({ ...known, draft: 10 }), null);
  }
});

test('a lane that drafted nothing, or stands alone, teaches nothing', () => {
  const [base, other] = shipped('scene');
  assert.equal(learn(base, base), null);
  assert.equal(learn(other, undefined), null);
  assert.equal(payOff(base, base.totalsAfter(Infinity)), null);
});
