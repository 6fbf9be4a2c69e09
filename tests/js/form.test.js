/* The form without a page: what running it means, what it takes over, what it refuses. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { Form } from '../../specvl_demo/ui/assets/js/state/form.js';
import { W } from '../../specvl_demo/ui/assets/js/words/words.js';
import { CATALOG, picture } from './page.js';

const [SCENE] = CATALOG.examples;

/** A form whose runs are noted. */
function made(catalog = CATALOG) {
  const upload = async (file) => ({ path: `/tmp/${file.name}`, url: 'u' });
  const form = new Form(catalog, upload, async (file) => file);
  const runs = [];
  form.on('run', (run) => runs.push(run));
  return { form, runs };
}

/** A form whose last question was answered. */
function answered(question = 'What is it?', media = [picture('a')]) {
  const { form, runs } = made();
  Object.assign(form.request, { question, media });
  form.last = { asked: structuredClone(form.request), turn: { question, answer: 'A cat.', media } };
  return { form, runs };
}

test('a run waits for the files on their way, which are made small and tell how far they are', async () => {
  const { form, runs } = made();
  const { files } = form;
  form.request.question = 'What is it?';
  const sizes = [];
  const shares = [];
  let sent;
  files.shrink = async (file) => ({ ...file, size: 10 });
  files.upload = (file, progress) => {
    sizes.push(file.size);
    progress(0.5);
    return new Promise((done, failed) => {
      sent = { done: () => done({ path: '/tmp/a', url: 'u' }), failed };
    });
  };
  files.on('progress', () => shares.push(files.pending[0].share));
  const settled = () => new Promise((done) => setTimeout(done));
  let adding = files.add([{ name: 'a.jpg', size: 900, type: 'image/jpeg' }]);
  await settled();
  form.run();
  assert.deepEqual([runs.length, files.pending.length, sizes, shares], [0, 1, [10], [0.5]]);
  sent.done();
  await adding;
  assert.deepEqual([runs.length, files.pending.length, runs[0].request.media[0].name], [1, 0, 'a.jpg']);
  adding = files.add([{ name: 'b.jpg', size: 900, type: 'image/jpeg' }]);
  await settled();
  form.run();
  sent.failed(new Error('gone')); // nothing runs without a picture that somebody meant to show
  await adding;
  assert.deepEqual([runs.length, files.refused.length], [1, 1]);
});

test('an example that is chosen while files are on their way has the last word', async () => {
  const { form, runs } = made();
  const { files } = form;
  let done;
  files.upload = () => new Promise((sent) => (done = sent));
  const adding = files.add(['a.png', 'b.png'].map((name) => ({ name, size: 5, type: 'image/png' })));
  await new Promise((ok) => setTimeout(ok));
  form.run();
  form.fill(SCENE);
  done({ path: '/tmp/a', url: 'u' });
  await adding;
  assert.deepEqual([runs, files.pending, form.waits], [[], [], null]);
  assert.deepEqual(form.request.media.map(({ example }) => example), ['scene']);
});

test('running again, another question and a follow-up are told apart', () => {
  const { form } = answered();
  assert.equal(form.next, 'same');
  form.request.question = 'And below it?';
  assert.equal(form.next, 'new');
  form.followUp = true;
  assert.equal(form.next, 'on');
  assert.deepEqual(form.earlier.map(({ answer }) => answer), ['A cat.']);
  form.request.pair = 'photo';
  assert.equal(form.next, 'new');
});

test('within a conversation questions go on with it, and an empty one begins anew', () => {
  const { form } = answered();
  form.last.asked.history.push({ question: 'Before?', answer: 'Yes.', media: [] });
  form.request.question = 'And below it?';
  assert.equal(form.next, 'on');
  form.request.question = ' ';
  assert.equal(form.next, 'new');
});

test('a follow-up sends its own pictures only, and comes back if it comes to nothing', () => {
  const { form, runs } = answered();
  form.request.media = [...form.request.media, picture('b')];
  form.request.question = 'And here?';
  form.followUp = true;
  form.run();
  const [{ request, before }] = runs;
  assert.deepEqual(request.media.map(({ name }) => name), ['b']);
  assert.equal(request.history.length, 1);
  assert.deepEqual([form.followUp, form.last], [false, null]);
  form.undo(before);
  assert.deepEqual([form.turns.length, form.request.media.length], [0, 2]);
  assert.notEqual(form.last, null);
});

test('what is too much, empty, refused or cannot be loaded is said and not sent', () => {
  const { limits } = CATALOG;
  const turns = (n, media) => Array(n).fill({ question: 'q', answer: 'a', media });
  const cases = [
    [{ question: '', media: [] }, W.ask.empty],
    [{ question: 'a'.repeat(limits.question + 1) }, /has 101 characters; 100 are the limit/],
    [{ history: turns(limits.turns + 1, []) }, /At most 2 earlier questions/],
    [{ history: turns(2, [picture('b')]) }, /at most 2 pictures and clips; .* it has 3/],
    [{ loading: { pocket: { dtype: 'float16' } } }, 'no GPU'],
    [{ methods: ['lvspec'], sampling: { temperature: 1 } }, W.ask.greedy(['LVSpec'])],
  ];
  for (const [changes, why] of cases) {
    const { form, runs } = made();
    Object.assign(form.request, { question: 'What?', media: [picture('a')], ...changes });
    form.run();
    if (why instanceof RegExp) assert.match(form.problem, why);
    else assert.equal(form.problem, why);
    assert.equal(runs.length, 0);
    form.settle();
    assert.equal(form.problem, '');
  }
});

test('a run carries what was changed, without methods that cannot sample', () => {
  const { form, runs } = made();
  const sampling = { temperature: 1, seed: 3 };
  Object.assign(form.request, { question: 'What?', methods: ['lvspec', 'sage'], sampling });
  form.run({ prefix: [7], branch: { lane: 'SAGE' } });
  const [{ request, without, branch }] = runs;
  assert.deepEqual([request.methods, without, request.prefix], [['sage'], ['LVSpec'], [7]]);
  assert.deepEqual([request.temperature, request.seed, branch.lane], [1, 3, 'SAGE']);
  form.running = true;
  form.run();
  assert.equal(runs.length, 1);
});

test('a method beyond the lanes is refused with a sentence', () => {
  const { form } = made();
  const told = [];
  form.on('refused', (sentence) => told.push(sentence));
  for (const name of ['sage', 'tabed', 'lvspec']) form.toggle(name, true);
  assert.deepEqual([form.request.methods, told], [['sage', 'tabed'], [W.ask.fullLanes(2)]]);
  form.request.pair = 'photo';
  form.toggle('tabed', false);
  assert.equal(form.refusal(CATALOG.methods.find(({ name }) => name === 'tabed')), 'no head');
});

test('a request is taken over without what is not known here', () => {
  const { form } = made();
  const methods = ['ar', 'nope', 'sage', 'tabed', 'lvspec'];
  assert.deepEqual(form.restore({ pair: 'gone', methods, question: 3 }), ['gone', 'nope']);
  assert.deepEqual([form.request.pair, form.request.methods], ['pocket', ['sage', 'tabed']]);
  assert.equal(form.request.question, '');
});

test('the key changes with what is asked, and the changes are named', () => {
  const { form } = made();
  form.fill(SCENE);
  const before = structuredClone(form.request);
  assert.equal(form.key(), form.key(form.of(SCENE)));
  form.request.question += ' ';
  assert.equal(form.key(), form.key(before));
  form.request.media = [];
  form.request.settings.sage = { width: 3 };
  assert.notEqual(form.key(), form.key(before));
  assert.equal(form.changedSince(before).length, 2);
});

test('an own picture takes an example’s question, pair and settings away, and gives them back', () => {
  const { form } = made();
  form.home = 'photo';
  form.fill({ ...SCENE, methods: ['tabed'], settings: { gamma: 9 } });
  const before = structuredClone(form.request);
  form.takeMedia([{ ...picture('clip'), kind: 'video' }]);
  const { pair, question, methods, settings } = form.request;
  assert.deepEqual([pair, question, methods, settings], ['photo', '', ['sage'], {}]);
  form.takeMedia(form.of(SCENE).media);
  assert.deepEqual(form.request, before);
  form.takeMedia([picture('mine')]);
  assert.equal(form.request.question, SCENE.question); // as many, of the same kind
});

test('an own picture or question is asked with own settings, not with an example’s', () => {
  const example = { ...SCENE, methods: ['sage'], settings: { width: 4 } };
  const { form } = made({ ...CATALOG, examples: [example] });
  for (const change of [
    () => form.takeMedia([picture('mine')]),
    () => form.type('question', 'And why?'),
  ]) {
    let updates = 0;
    form.fill(example);
    form.request.settings.tabed = { gamma: 3 };
    form.on('update', () => (updates += 1));
    form.type('system', 'Briefly.');
    assert.deepEqual(form.request.settings.sage, { width: 4 });
    change();
    assert.deepEqual(form.request.settings, { tabed: { gamma: 3 } });
    assert.equal(updates, 1); // what shows them is told
  }
});

test('a pair that the visitor chose is asked about an own picture', () => {
  const { form } = made();
  form.changePair('photo');
  form.fill(SCENE);
  form.takeMedia([picture('mine')]);
  assert.equal(form.request.pair, 'photo');
});

test('a question about two pictures means nothing to one, unless another is on its way', () => {
  const two = { ...SCENE, media: [picture('scene'), picture('other')] };
  const { form } = made({ ...CATALOG, examples: [two] });
  for (const [media, coming, question] of [
    [[picture('a')], 0, ''],
    [[picture('a')], 1, two.question],
    [[picture('a'), picture('b')], 0, two.question],
  ]) {
    form.fill(two);
    form.takeMedia(media, coming);
    assert.equal(form.request.question, question);
  }
});

test('another pair brings its own example in place of an untouched one only', () => {
  const { form } = made();
  const chosen = [];
  form.on('example', ({ id }) => chosen.push(id));
  form.fill(SCENE);
  form.changePair('photo');
  assert.deepEqual([chosen, form.request.question], [['dog'], 'What does it do?']);
  form.request.question = 'And mine?';
  form.changePair('pocket');
  assert.deepEqual([chosen.length, form.request.pair, form.request.question], [1, 'pocket', 'And mine?']);
});

test('files that do not fit are named, one that cannot be shown gives way to the example', async () => {
  const { form } = made();
  const { files } = form;
  form.fill(SCENE);
  const file = (name, size, type = '') => ({ name, size, type });
  await files.add([file('a.txt', 1), file('b.png', 0), file('c.png', 1e9)]);
  assert.deepEqual(files.refused.map(({ name }) => name), ['b.png', 'c.png']);
  await files.add([file('d.png', 5), file('e.png', 5), file('f.png', 5)]);
  assert.deepEqual(form.request.media.map(({ name }) => name), ['d.png', 'e.png']);
  assert.equal(files.refused[0].why, W.media.many('f.png', 2));
  files.choose([files.media[0]]);
  files.dropBroken(files.media[0]);
  assert.deepEqual(form.request.media.map(({ example }) => example), ['scene']);
});

test('a clip that the browser does not show is refused if the server cannot read it either', async () => {
  const { form } = made();
  const { files } = form;
  form.fill(SCENE);
  const clip = { ...picture('c.mp4'), kind: 'video' };
  files.join(clip);
  const answers = [async () => null, () => Promise.reject(new Error('gone')), async () => ({ problem: 'No clip.' })];
  const left = [];
  for (const check of answers) {
    files.check = check;
    await files.dropBroken(clip);
    left.push(files.own.length);
  }
  assert.deepEqual([left, files.refused, form.request.media[0].example], [[1, 1, 0], [{ name: 'c.mp4', why: 'No clip.' }], 'scene']);
});

test('the pair that was made for what this one cannot judge is offered, and nothing more is said with it', () => {
  const { form } = made();
  Object.assign(form.request, { question: 'What?', media: [picture('cat')] });
  assert.notEqual(form.scope, '');
  form.changePair(form.fittingPair.id);
  assert.deepEqual([form.request.pair, form.scope, form.fittingPair], ['photo', '', undefined]);
});
