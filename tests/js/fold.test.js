/* Folds over records: totals, pieces of text, reasons, speedups while lanes run. */

import assert from 'node:assert/strict';
import test from 'node:test';
import * as fold from '../../specvl_demo/ui/assets/js/records/fold.js';
import { point } from '../../specvl_demo/ui/assets/js/records/highlights.js';
import { differences, disturbed, doubt, doubts } from '../../specvl_demo/ui/assets/js/records/verdict.js';
import { Race } from '../../specvl_demo/ui/assets/js/state/race.js';
import { benchByDepth, speedup } from '../../specvl_demo/ui/assets/js/views/charts.js';
import { headline } from '../../specvl_demo/ui/assets/js/views/headline.js';
import { W, fmt } from '../../specvl_demo/ui/assets/js/words/words.js';
import { TRACES, fold as folded, lane, round, shipped, told, token } from './page.js';

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9, `${a} is not ${b}`);

test('τ counts the target’s own token, and every moment keeps its totals', () => {
  const chain = lane([{ kept: 'abc', drafted: 'abcd', own: 'x' }, { kept: 'ef', own: 'g' }]);
  assert.equal(chain.text, 'abcxefg');
  const whole = chain.totalsAfter(Infinity);
  assert.deepEqual([whole.tau, whole.n_drafted, whole.n_accepted, whole.n_rounds], [3.5, 6, 5, 2]);
  near(whole.tokens_per_s, 35);
  near(chain.totalsAfter(1).tokens_per_s, 40);
  assert.equal(chain.totalsAfter(0).tau, null);
  assert.deepEqual([0, 0.1, 0.15, 9].map((s) => chain.roundsBy(s)), [0, 1, 1, 2]);
  near(chain.before, 0.3);
});

test('a character of several tokens waits until it is whole and has one origin', () => {
  const parts = [token('', 'draft'), token('', 'relaxed'), token('é', 'draft')];
  const made = lane([], null);
  made.add({ ...round(0, { kept: 'abc' }), tokens: parts.slice(0, 2) });
  assert.equal(made.pieces.length, 0);
  made.add({ ...round(1, { kept: 'a' }), tokens: parts.slice(2) });
  const [piece] = made.pieces;
  assert.deepEqual([piece.text, piece.origin, piece.mixed, piece.stop], ['é', 'relaxed', true, 3]);
  made.add({ ...round(2, {}), tokens: [token('', 'target')] });
  made.close({ stop: 'eos' });
  assert.deepEqual([made.said(3), made.complete, made.pieces.length], ['■', true, 2]);
});

test('a token knows why it is in the answer', () => {
  const reasons = [
    [{ kept: 'a', drafted: 'ab', own: 'x' }, 0, 'accepted'],
    [{ kept: 'a', drafted: 'ab', own: 'x' }, 1, 'corrected'],
    [{ kept: 'a', own: 'x' }, 1, 'bonus'],
    [{ own: 'x' }, 0, 'alone'],
  ];
  for (const [parts, at, reason] of reasons) assert.equal(fold.reason(round(0, parts), at), reason);
  assert.deepEqual(fold.rejected(round(0, { kept: 'a', drafted: 'abc', own: 'x' })), [2, 3]);
});

test('children come likeliest first, depths from the root', () => {
  const tree = { parent: [-1, 0, 0, 1], draft_logp: [null, -2, -1, null] };
  assert.deepEqual(fold.children(tree), [[2, 1], [3], [], []]);
  assert.deepEqual(fold.depths(tree), [0, 1, 1, 2]);
  assert.equal(fold.dig({ notes: { weights: { text: 0.5 } } }, 'notes.weights.text'), 0.5);
  assert.equal(fold.dig({ notes: null }, 'notes.weights.text'), undefined);
});

test('a shipped race folds to its own totals', () => {
  for (const made of shipped('scene')) {
    const folded = made.totalsAfter(Infinity);
    for (const [name, total] of Object.entries(made.end.totals)) near(folded[name], total);
  }
});

test('folds, speedups and doubts are those of the program', { skip: !told('races') }, () => {
  for (const { records, compared, speedup: s } of told('races')) {
    const shown = new Race();
    shown.show(records);
    near(shown.speedup(shown.list[1]), s);
    const list = folded(records);
    const [base, other] = list;
    const race = { list, baseline: base, ended: list.every(({ end }) => end), load: 0, rules: { load: 0.25 }, meta: { compared } };
    const { cut, lanes } = compared;
    const reason = cut ? { kind: 'cut', sentence: cut } : lanes[other.name].doubt;
    const over = list.every((one) => one.end);
    assert.deepEqual(doubt(race, other), over ? reason : null);
    assert.equal(doubt(race, base), null);
    assert.equal(doubts(race).length, over && reason ? 1 : 0);
    if (over) assert.equal(doubt({ ...race, meta: {} }, other).kind, 'unknown');
  }
});

test('a half is rounded up, as by the program', { skip: !told('numbers') }, () => {
  for (const [x, digits, text] of told('numbers')) assert.equal(fmt.number(x, digits), text);
});

test('a running speedup compares by token, and ends at the table’s', () => {
  const ar = lane(
    Array.from({ length: 10 }, () => ({ own: 'x' })),
    'length',
    'ar',
  );
  const chain = lane([{ kept: 'x', own: 'x' }, { kept: 'x', own: 'x' }], 'length');
  near(fold.speedupByToken(chain, ar, 1), 2);
  near(fold.speedupByToken(chain, ar, 2), 2);
  assert.equal(fold.speedupByToken(chain, ar, 0), null);
  chain.close({ stop: 'length', again: [0.6] }); // 0.2 s the first time
  near(fold.speedupByToken(chain, ar, 2), 1);
  near(chain.totalsAfter(2).tokens_per_s, 10);
  near(chain.totalsAfter(2).clock_s, 0.4);
  for (const [name] of TRACES) {
    const [base, ...others] = shipped(name.split('.')[0]);
    for (const other of others.filter(({ tokens }) => tokens.length === base.tokens.length))
      near(
        fold.speedupByToken(other, base, Infinity),
        other.totalsAfter(Infinity).tokens_per_s / base.totalsAfter(Infinity).tokens_per_s,
      );
  }
});

test('a busy machine is told while lanes run, the clearest of several reasons once', () => {
  const list = ['ar', 'a', 'b'].map((name) => lane([{ own: 'x' }], null, name));
  const race = { list, baseline: list[0], ended: false, load: 0.5, rules: { load: 0.25 }, meta: {} };
  assert.equal(doubt(race, list[1]).kind, 'disturbed');
  assert.equal(doubts(race)[0][1].length, 2);
  assert.equal(doubt({ ...race, load: 0.1 }, list[1]), null);
});

test('a sentence says of a method that was slower, or no faster, that it was', () => {
  const { took, doubtful } = W.headline;
  assert.equal(took(1.8, 1.2), '1.80× faster to write, 1.20× with reading the question');
  assert.equal(took(1.01, null), 'but no faster to write (1.01×)');
  assert.equal(took(0.5, 0.7), 'but 2.00× slower to write');
  const rough = [2, 1, 0.5].map((about) => doubtful(3, about, 'why'));
  assert.deepEqual(rough, ['about 2.0× faster to write; why', 'about as fast to write; why', 'about 2.0× slower to write; why']);
});

test('what an exact method promises is told of the weights that ran', () => {
  assert.match(W.lane.exactHelp('float32', '8-bit weights'), /plain steps with the same 8-bit weights on the same machine/);
  assert.match(W.lane.exactHelp('float32'), /plain steps in float32 on the same machine/);
});

test('the sentence of a race that runs tells the speeds of all its lanes', () => {
  const list = [
    lane([{ own: 'x' }], null, 'ar'),
    lane([{ kept: 'a', own: 'x' }], null, 'sage'),
    lane([{ kept: 'ab', own: 'x' }], null, 'tabed'),
  ];
  for (const one of list) one.title = one.name.toUpperCase();
  const race = new Race();
  for (const one of list) race.lanes.set(one.name, one);
  list[0].begin.method = 'ar';
  list[2].close({ stop: 'eos' });
  const words = 'Tokens per second: one at a time 10.0, SAGE 20.0 and TABED 30.0 (done).';
  assert.deepEqual(headline(race), [words]);
});

/** A race of which the program says that no lane differs, and how much faster each was. */
function compared(list) {
  const race = new Race();
  for (const made of list) race.lanes.set(made.name, Object.assign(made, { title: made.name.toUpperCase() }));
  list[0].begin.method = 'ar';
  const found = { changes: [], doubt: null, speedup_total: null };
  race.meta = { compared: { lanes: Object.fromEntries(list.map(({ name }) => [name, found])) } };
  return race;
}

/** The sentence above a race, its marked words as text. */
function sentenceOf(race) {
  const createElementNS = () => ({ setAttribute() {}, append(text) { this.textContent = text; } });
  globalThis.document = { createElementNS };
  const parts = headline(race);
  delete globalThis.document;
  return parts.map((part) => part.textContent ?? part).join('');
}

test('of drafts of which none, or only the end, was kept the sentence says that', () => {
  const told = (own) => sentenceOf(compared([lane([{ own: 'x' }], 'eos', 'ar'), lane([own], 'eos', 'sage')]));
  assert.ok(told({ drafted: 'ab', own: 'x' }).startsWith(W.headline.none(W.headline.rule, '')));
  const end = { drafted: 'a', tokens: [token('x', 'target'), token('', 'draft')] };
  assert.ok(told(end).startsWith(W.headline.ended(W.headline.rule, '')));
});

test('the fastest lane is pointed at, unless the visitor chose another', () => {
  for (const [chosen, name] of [[false, 'sage'], [true, 'dream']]) {
    const list = [lane([{ own: 'x' }], 'eos', 'ar'), lane([{ kept: 'abc', own: 'x' }], 'eos', 'sage')];
    const race = compared([...list, lane([{ own: 'x' }], 'eos', 'dream')]);
    race.setFocus('dream', chosen);
    point(race);
    assert.equal(race.focused.name, name);
  }
});

test('the token pointed at is of a round that kept some drafts, if one of them also lost some', () => {
  const drafted = (kept, chances) => {
    const { tree } = round(0, { kept, drafted: 'abc' });
    return { kept, own: 'word', tree: { ...tree, draft_logp: [null, ...chances.map(Math.log)] } };
  };
  const failed = drafted('', [0.9, 0.9, 0.9]);
  for (const [second, token] of [[drafted('ab', [0.5, 0.5, 0.4]), 3], [drafted('abc', [0.5, 0.5, 0.5]), 0]]) {
    const race = compared([lane([{ own: 'x' }], 'eos', 'ar'), lane([failed, second], 'eos', 'sage')]);
    point(race);
    assert.equal(race.selected.token, token);
  }
});

test('of a stopped race a lane is pointed at that wrote something', () => {
  const race = compared([lane([{ own: 'x' }], null, 'ar'), lane([], null, 'tabed'), lane([{ own: 'x' }], null, 'sage')]);
  race.meta.compared.cut = 'Stopped.';
  for (const { name } of race.list) race.lanes.get(name).close({ stop: 'cancelled' });
  race.setFocus('tabed', false);
  point(race);
  assert.equal(race.focused.name, 'sage');
});

test('a comparison shows only depths that a tenth of the rounds can have reached', () => {
  const rows = [{ method: 'TABED', colour: 1, accepted_by_depth: [0.5, 0.5, 0.3, 1] }];
  const { legend, note } = benchByDepth({ report: { rows } }).build(null, { lanes: [] });
  assert.deepEqual([legend[0].y, note], [[50, 50, 30], W.charts.byDepthMany]);
});

test('an answer that was decoded again has one time in replay, sentence and table', () => {
  const list = [lane([{ own: 'x' }, { own: 'y' }], null, 'ar'), lane([{ kept: 'x', own: 'y' }], 'eos', 'sage')];
  list[0].close({ stop: 'eos', again: [0.1, 0.1] }); // 0.2 s the first time
  const race = compared(list);
  near(race.duration, 0.4 / 3);
  race.setHead(0.1);
  assert.deepEqual(list.map((one) => race.over(one)), [false, true]);
  assert.ok(headline(race)[0].includes(fmt.seconds(race.now(list[0]).clock_s * 2)));
  race.slower = 100;
  near(race.making(list[0]).verified, (0.05 - 0.02) / 0.08); // half of the second step
  race.setHead(0.4 / 3);
  assert.ok(race.over(list[0]));
});

test('of a replay the sentence tells no unknown speed and no past', () => {
  const race = compared([lane([{ own: 'x' }], 'eos', 'ar'), lane([{ kept: 'abc', own: 'x' }], 'eos', 'sage')]);
  race.setHead(0);
  assert.deepEqual(headline(race), ['A replay of 100 ms of writing. ']);
});

test('a stopped race stays hedged, and what AR had no time to write is no difference', () => {
  const race = compared([lane([{ own: 'x' }], 'cancelled', 'ar'), lane([{ kept: 'ab', own: 'c' }], 'cancelled', 'lvspec')]);
  const { compared: found } = race.meta;
  found.cut = 'it was stopped';
  assert.equal(disturbed(race), null);
  const why = { kind: 'disturbed', sentence: 'others kept 66 % busy', load: 0.66 };
  found.lanes.lvspec = { changes: [[0, 1, 0, 3]], doubt: why };
  assert.deepEqual([disturbed(race), doubt(race, race.list[1]).kind], [why, 'cut']);
  assert.deepEqual(headline(race), ['This race was not run to its end: its times are not compared.']);
  assert.equal(differences(race, race.list[1]), null);
  for (const one of race.list) one.close({ stop: 'eos' });
  assert.deepEqual(differences(race, race.list[1]).changes, [['x', 'abc']]);
});

test('what disturbed lanes is told once: the clearest beside the chart, in the sentence the leader’s own; none is the fastest', () => {
  const list = ['ar', 'tabed', 'sage'].map((name) => lane([{ own: 'x' }, { own: 'x' }], 'eos', name));
  const race = compared(list);
  const { lanes } = race.meta.compared;
  for (const [name, load, about] of [['tabed', 0.8, 0.3], ['sage', 0.3, 0.8]])
    lanes[name] = { ...lanes[name], doubt: { kind: 'disturbed', sentence: `timing disturbed by ${load}`, load, about } };
  assert.equal(speedup.build(race, { lanes: [] }).note, 'Speedup only rough: timing disturbed by 0.8.');
  assert.equal(doubts(race)[0][0].load, 0.8); // the clearest of both
  const told = sentenceOf(race);
  assert.match(told, /about 1\.3× slower to write; timing disturbed by 0\.3/);
  assert.doesNotMatch(told, /fastest|timing disturbed.*timing disturbed/);
  lanes.sage.doubt = null;
  assert.equal(speedup.build(race, { lanes: [] }).note, 'Speedup of TABED only rough: timing disturbed by 0.8.');
});
