/* Runs, the race on the page, visits and benches, without a page: what is told, offered and kept. */

import assert from 'node:assert/strict';
import test from 'node:test';
import { Bench } from '../../specvl_demo/ui/assets/js/state/bench.js';
import * as link from '../../specvl_demo/ui/assets/js/state/link.js';
import { questionsOf } from '../../specvl_demo/ui/assets/js/state/questions.js';
import { Visit } from '../../specvl_demo/ui/assets/js/state/visit.js';
import { COMPARE } from '../../specvl_demo/ui/assets/js/words/comparewords.js';
import { W } from '../../specvl_demo/ui/assets/js/words/words.js';
import { recordsOf } from '../../specvl_demo/ui/assets/js/records/trace.js';
import { FollowUps } from '../../specvl_demo/ui/assets/js/state/followups.js';
import { CATALOG, browser, pageState, picture, round, scene } from './page.js';

const settled = () => new Promise((done) => setTimeout(done));

/** The records of a lane that wrote these letters, each by itself. */
const written = (lane, letters, more = {}, stop = 'cancelled') => {
  const title = lane[0].toUpperCase() + lane.slice(1);
  const begin = { kind: 'begin', lane, method: lane, title, lossless: true, spans: [], charts: [], notes: {}, ...more };
  const rounds = [...letters].map((own, i) => ({ kind: 'round', ...round(i, { own, lane }) }));
  const records = [begin, ...rounds, { kind: 'end', lane, stop, totals: {} }];
  return records.map((record) => ({ k: record.kind, record }));
};

/** The page after a reload: `left` while a race ran. */
async function reloaded(before, left = false) {
  browser();
  new Visit(before).keep(left);
  const parts = pageState({}, before.catalog);
  parts.archive.load = async () => (parts.archive.runs = before.archive.runs);
  parts.api.upload = async () => ({ path: '/a', url: '/a' });
  await new Visit(parts).start({ picked: null, open() {} });
  return parts;
}

/** A page whose form asks something, and a run that has begun there. */
async function running(server) {
  const parts = pageState(server);
  Object.assign(parts.form.request, { question: 'What is there?', media: [picture('a')] });
  parts.form.run();
  await settled();
  return parts;
}

test('a race that ends is kept and can be followed, and the form asks the same', async () => {
  const { archive, feed, form, live, race, said, stage } = await running();
  let over = 0;
  live.on('over', () => (over += 1));
  assert.deepEqual([form.running, race.list.map(({ pending }) => pending)], [true, [true, true]]);
  feed({ k: 'status', stage: 'decode' }, ...scene());
  assert.equal(stage.waiting, '');
  feed({ k: 'done' });
  await settled();
  assert.deepEqual([form.running, over, archive.runs.length, stage.offers], [false, 1, 1, ['follow']]);
  assert.deepEqual([form.last.turn.question, form.next, stage.outdated], ['What is there?', 'same', false]);
});

test('behind the last round of the lane in focus steps take as long as one, to the end of all lanes', async () => {
  const { feed, race, replay } = await running();
  feed(...scene(), { k: 'done' });
  await settled();
  const clock = (n) => race.focused.totalsAfter(n).clock_s;
  const { length } = race.focused.rounds;
  const end = clock(length);
  const steps = Math.ceil((race.duration - end) / (end / length));
  assert.ok(steps > 1 && steps < length);
  race.setHead(end);
  for (let i = 0; i < steps; i += 1) {
    assert.ok(!race.finished);
    replay.turn(1);
  }
  assert.deepEqual([race.head, race.finished], [null, true]);
  for (let i = 0; i < steps; i += 1) replay.turn(-1);
  assert.equal(race.head, end);
  replay.turn(-1);
  assert.equal(race.head, clock(length - 1));
});

test('a question that the race does not answer greys it, the same one again does not', async () => {
  const { feed, form, stage } = await running();
  feed(...scene(), { k: 'done' });
  await settled();
  form.request.pair = 'photo';
  form.request.question = '';
  form.last = null;
  form.changed();
  assert.ok(stage.outdated);
  assert.match(stage.notice.text, /answers “What is there\?”.*another target and another question/);
  form.say('Wrong.', true);
  form.changed();
  assert.deepEqual(stage.notice, { text: 'Wrong.', wrong: true }); // an error stays
  Object.assign(form.request, { pair: 'pocket', question: 'What is there?' });
  form.settle();
  form.changed();
  assert.deepEqual([stage.outdated, stage.notice.text], [false, '']);
});

test('a recorded race makes way for own pictures, and stands there again without them', () => {
  const { form, stage } = pageState();
  form.fill(CATALOG.examples[0]);
  stage.show(scene().map(({ record }) => record), { source: 'recorded', ...form.asked }, false);
  form.files.join(picture('mine'));
  assert.deepEqual([stage.away, stage.notice.text], [true, '']);
  form.files.remove(form.files.media[0]);
  assert.deepEqual([stage.away, stage.outdated], [false, true]);
  form.fill(CATALOG.examples[0]);
  assert.deepEqual([stage.outdated, stage.notice.text], [false, '']);
});

test('a run that comes to nothing leaves the race and the form that were there', async () => {
  const { archive, feed, form, race, stage } = await running();
  feed(...scene(), { k: 'done' });
  await settled();
  const before = recordsOf(race).length;
  form.request.question = 'And below?';
  form.followUp = true;
  form.run();
  assert.deepEqual([form.turns.length, recordsOf(race).length < before], [1, true]);
  feed({ k: 'error', text: 'Too large.' }, { k: 'done' });
  await settled();
  assert.deepEqual([form.turns.length, recordsOf(race).length, archive.runs.length], [0, before, 1]);
  assert.deepEqual([form.problem, stage.notice, stage.offers], ['Too large.', { text: 'Too large.', wrong: true }, ['follow']]);
  form.run();
  form.emit('stop');
  feed({ k: 'done' });
  await settled();
  assert.deepEqual([recordsOf(race).length, archive.runs.length], [before, 1]);
  assert.ok(stage.notice.text.startsWith(W.run.unbegun));
});

test('a run is stopped by its name; before the first word there is no answer', async () => {
  for (const begun of [false, true]) {
    const stopped = [];
    const { archive, feed, form, race, said, stage } = await running({ stop_run: async (run) => stopped.push(run) });
    feed({ k: 'run' });
    form.emit('stop');
    feed({ k: 'status', stage: 'prefill' });
    assert.deepEqual([stopped, said.at(-1)], [['run0'], W.run.stopping]); // that it stops stays said
    assert.equal(stage.waiting, W.run.stopping);
    if (begun) feed(...['ar', 'sage'].flatMap((lane) => written(lane, '')));
    feed({ k: 'done' });
    await settled();
    assert.deepEqual([race.meta.source, race.list.length, stage.offers], ['ended', 0, []]);
    assert.deepEqual([form.turns.length, archive.runs.length, said.at(-1)], [0, 0, W.run.stopping]);
    assert.deepEqual([stage.notice.text, form.running], [W.run.unbegun, false]);
  }
});

test('the seconds of a long stage are told, until the run is being stopped', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval', 'Date'] });
  const { feed, form, said } = await running();
  feed({ k: 'status', stage: 'prefill' });
  t.mock.timers.tick(4000);
  assert.equal(said.at(-1), W.run.waited(W.run.stage.prefill, 4));
  form.emit('stop');
  t.mock.timers.tick(2000);
  feed({ k: 'round', record: { kind: 'round', lane: 'nobody' } });
  assert.equal(said.at(-1), W.run.stopping);
  feed({ k: 'done' });
});

test('a server that falls silent, or takes no call, is told as one that is gone', async (t) => {
  const gone = async () => Promise.reject(new Error('gone'));
  t.mock.timers.enable({ apis: ['setInterval', 'Date'] });
  const { form, stage } = await running({ stop_run: gone });
  for (let looks = 0; looks < 8; looks += 1) {
    t.mock.timers.tick(2500);
    await settled();
  }
  assert.deepEqual([form.running, stage.notice], [false, { text: W.run.lost, wrong: true }]);
  browser();
  const { bench, said } = benching(1, { stop_run: gone, start_bench: gone });
  bench.methods = ['sage'];
  await bench.run();
  assert.deepEqual([said.at(-1), bench.running], [W.run.away, false]);
});

test('a method that cannot sample is left out of the race, which says so over it to its end', async () => {
  const { feed, form, race, stage } = pageState();
  const sampling = { temperature: 1 };
  Object.assign(form.request, { question: 'What?', methods: ['lvspec', 'sage'], sampling });
  form.run();
  assert.deepEqual(race.list.map(({ name }) => name), ['ar', 'sage']);
  feed(...scene(), { k: 'done' });
  await settled();
  assert.deepEqual(stage.notice, { text: W.ask.greedy(['LVSpec']), wrong: true });
});

test('after Stop a follow-up goes on from the longest text of an exact lane, and says which', async () => {
  const { feed, said, stage } = await running();
  feed(...written('ar', 'ab'), ...written('lvspec', 'abcdef', { lossless: false }), ...written('sage', 'abcd'));
  feed({ k: 'done' });
  await settled();
  assert.equal(said.at(-1), `${W.run.stopped} ${W.chat.goesOn('Sage')}`);
  const { question, answer, from } = stage.turn();
  assert.deepEqual([question, answer, from], ['What is there?', 'abcd', 'Sage']);
});

test('a branch asks for the lane that it was taken from, stays after a reload, and leads back', async () => {
  const parts = pageState();
  const { feed, form, race, stage } = parts;
  const asked = { question: 'What?', media: [{ ...picture('a'), example: 'scene' }], methods: ['tabed', 'sage'] };
  parts.catalog = { ...CATALOG, examples: [{ ...CATALOG.examples[0], media: asked.media }] };
  Object.assign(form.request, asked);
  const runs = [];
  form.on('run', ({ request }) => runs.push(request));
  new FollowUps(parts);
  const answer = async (names, request) => {
    feed(...names.flatMap((name) => written(name, 'abcd', { request }, 'eos')), { k: 'done' });
    await settled();
  };
  form.run();
  await answer(['ar', 'tabed', 'sage'], 'first');
  race.emit('branch', { lane: race.lanes.get('sage'), index: 2, id: 7, text: 'x' });
  await answer(['ar', 'sage'], 'second');
  assert.deepEqual([runs[1].methods, runs[1].prefix], [['sage'], ['a', 'b'].map((c) => c.codePointAt(0)).concat(7)]);
  const fits = (page) => {
    assert.deepEqual([page.race.list.map(({ name }) => name), page.form.request.methods], [['ar', 'sage'], ['sage']]);
    assert.deepEqual([page.stage.outdated, page.stage.notice.text], [false, '']);
    const { before, chosen, taken, after } = page.race.meta.branch;
    assert.deepEqual([before, chosen, taken, after], ['ab', 'c', 'x', 'd']);
  };
  fits(parts);
  const later = await reloaded(parts);
  fits(later);
  new FollowUps(later).back();
  await settled();
  assert.deepEqual(later.race.list.map(({ name }) => name), ['ar', 'tabed', 'sage']);
  assert.deepEqual([later.form.request.methods, later.stage.notice.text], [['tabed', 'sage'], '']);
});

test('a race that comes late does not replace what was chosen since', async () => {
  browser();
  const { form, race, stage } = pageState();
  const records = scene().map(({ record }) => record);
  const kept = { source: 'live', question: 'Kept?', asked: form.asked.asked };
  const late = stage.again(records, kept);
  stage.show(records, { source: 'recorded', question: 'Chosen?' }, false);
  await late;
  assert.equal(race.meta.question, 'Chosen?');
  await stage.again(records, kept);
  assert.equal(race.meta.question, 'Kept?');
  const lines = records.map((record) => JSON.stringify(record)).join('\n');
  const { bench, parts } = benching(2, { bench_race: async () => ({ lines, question: 'Late?' }) });
  bench.id = 'b';
  const cell = bench.openRace('text', 'sage');
  parts.stage.show(records, { source: 'recorded', question: 'Chosen?' }, false);
  await cell;
  assert.equal(parts.race.meta.question, 'Chosen?');
});

test('a race is not replaced while one runs', async () => {
  const parts = await running();
  parts.stage.show(scene().map(({ record }) => record), { source: 'recorded' }, false);
  assert.deepEqual([parts.form.problem, parts.race.meta.source], [W.run.busy, 'live']);
  parts.feed({ k: 'done' });
});

test('of races that were chosen the last one comes onto the page, whichever is there first', async () => {
  const replies = {};
  browser({ fetch: (name) => new Promise((ok) => (replies[name] = ok)) });
  const { form, race, stage } = pageState();
  const [one, other] = CATALOG.examples.map((example) => ({ ...example, trace: example.id }));
  const records = scene().map(({ record }) => record);
  const text = records.map((record) => JSON.stringify(record)).join('\n');
  const shown = [stage.example(one), stage.again(records, form.asked), stage.example(other)];
  replies.dog({ ok: true, text: async () => text });
  await settled();
  replies.scene({ ok: false });
  await Promise.all(shown);
  assert.deepEqual([race.meta.example, race.list.length, form.problem], ['dog', 2, '']);
});

test('a first visit shows the first example with a right answer, and leaves what was typed', async () => {
  const traced = CATALOG.examples.map((example) => ({ ...example, trace: 'x', media: [] }));
  const examples = [{ ...traced[1], id: 'wrong', fails: 'No.' }, ...traced];
  const catalog = { ...CATALOG, examples };
  const text = scene().map(({ record }) => JSON.stringify(record)).join('\n');
  browser({ fetch: async () => ({ ok: true, text: async () => text }) });
  for (const typed of ['', 'Mine?']) {
    const parts = pageState({}, catalog);
    parts.form.request.question = typed;
    const opened = [];
    await new Visit(parts).start({ picked: null, open: (name) => opened.push(name) });
    assert.deepEqual([parts.race.meta.example, parts.form.request.question], ['scene', typed || 'What is there?']);
    assert.deepEqual([parts.race.list.length, opened], [2, ['race']]);
  }
});

test('a link is taken over with what is known of it; a damaged one says so', async () => {
  const asked = { pair: 'photo', methods: ['sage', 'nope'], question: 'Why?' };
  browser();
  const linked = link.write({ pair: 'photo', methods: ['sage'], question: 'Where?', media: [picture('b')], history: [] });
  for (const [hash, question, notice] of [
    [`#race=${btoa(JSON.stringify(asked))}`, 'Why?', W.run.unknownLink(['nope'])],
    ['#race=broken!', 'What is there?', W.run.brokenLink],
    [new URL(linked).hash, 'Where?', W.run.fromLink(true)],
    [`#race=${btoa(JSON.stringify(asked)).slice(0, -20)}`, 'What is there?', W.run.brokenLink],
  ]) {
    browser({ hash });
    const parts = pageState();
    await new Visit(parts).start({ picked: 'learn', open() {} });
    assert.deepEqual([parts.form.request.question, parts.stage.notice.text], [question, notice]);
  }
});

test('a reload finds the form and the race beside it; one that still ran was not kept, and that is said once', async () => {
  const first = await running();
  first.feed(...scene(), { k: 'done' });
  await settled();
  for (const left of [false, true]) {
    const parts = await reloaded(first, left);
    assert.deepEqual([parts.form.request.question, parts.race.list.length], ['What is there?', 2]);
    assert.equal(parts.stage.notice.text.includes(W.run.left), left);
    assert.ok(!(await reloaded(parts)).stage.notice.text.includes(W.run.left));
  }
});

test('another tab of the same browser begins as a new visitor’s', async () => {
  const first = await running();
  first.feed(...scene(), { k: 'done' });
  await settled();
  browser();
  new Visit(first).keep();
  browser({ localStorage });
  const { form, race, ...parts } = pageState();
  await new Visit({ form, race, ...parts }).start({ picked: null, open() {} });
  assert.deepEqual([form.request.media[0].name, race.list.length], ['scene', 0]);
});

test('a conversation that is left while a race runs stands above its own last race, or above none', async () => {
  const first = await running();
  first.feed(...scene(), { k: 'done' });
  await settled();
  new FollowUps(first).follow();
  first.form.request.question = 'And then?';
  first.form.run();
  const shown = await reloaded(first, true);
  assert.deepEqual([shown.form.turns.length, shown.race.list.length, shown.stage.outdated], [1, 2, false]);
  first.archive.runs = [];
  const { form, race, stage } = await reloaded(first, true);
  assert.deepEqual([form.turns.length, race.list.length, stage.outdated], [1, 0, false]);
  assert.ok(stage.notice.text.startsWith(W.run.left));
  first.feed({ k: 'done' });
});

/** A bench on a server that has so many questions, of which the answers are counted. */
function benching(total, over = {}) {
  const asked = [];
  let done = 0;
  const report = () => ({ rows: [{ name: 'ar' }, { name: 'sage' }], done, total });
  const server = {
    start_bench: async (made) => {
      asked.push(made);
      return { bench: 'b', questions: total, repeats: 1, total };
    },
    bench_progress: async () => report(),
    open_report: async () => null,
    ...over,
  };
  const parts = pageState(server);
  const answer = () => {
    done += 1;
    return parts.answer?.(done) ?? null;
  };
  Object.assign(parts.runner, { run: async () => answer() });
  const bench = new Bench(parts);
  const said = [];
  bench.on('say', ({ text }) => said.push(text));
  return { asked, bench, parts, said };
}

test('a bench asks one question after the other; Stop keeps what was done, Go on asks the rest', async () => {
  browser();
  const { asked, bench, parts, said } = benching(4);
  bench.open();
  bench.fields.questions = 4;
  parts.answer = (done) => (done === 2 ? (bench.stop(), null) : null);
  await bench.run();
  const [{ pair, methods, questions, max_new_tokens: most }] = asked;
  assert.deepEqual([pair, methods, questions, most], ['pocket', ['sage'], 4, 64]);
  assert.deepEqual([bench.running, bench.report.done, bench.unfinished], [false, 2, true]);
  assert.equal(said.at(-1), COMPARE.stopped);
  await bench.goOn();
  assert.equal(bench.unfinished, false);
  assert.equal(said.at(-1), COMPARE.done(bench.report));
});

test('a bench ends with what failed, and its tables have the colours of their methods', async () => {
  browser();
  const { bench, parts, said } = benching(3);
  bench.methods = ['sage'];
  parts.answer = () => 'No memory.';
  await bench.run();
  assert.equal(said.at(-1), 'No memory.');
  assert.deepEqual(bench.report.rows.map(({ colour }) => colour), [0, 3]);
});

test('the recorded comparison is shown first, never in place of one that began or was opened meanwhile', async () => {
  const other = { rows: [{ name: 'sage' }] };
  for (const [meanwhile, expected] of [
    [() => null, ['chain', undefined]],
    [(bench) => bench.run(), ['ar', 'b']],
    [(bench) => bench.openReport('{}'), ['sage', undefined]],
  ]) {
    browser();
    let reply;
    const recorded = new Promise((ok) => (reply = ok));
    const { bench } = benching(2, { open_report: async (text) => (text ? other : recorded) });
    bench.open();
    await meanwhile(bench);
    reply({ rows: [{ name: 'chain' }] });
    await settled();
    const [{ name }] = bench.report.rows;
    assert.deepEqual([name, bench.id], expected);
  }
});

test('a report that is opened while a bench runs does not take its place', async () => {
  browser();
  const { bench, parts, said } = benching(2, { open_report: async () => ({ rows: [{ name: 'chain' }] }) });
  bench.open();
  parts.answer = () => bench.openReport('{}').then(() => null);
  await bench.run();
  assert.deepEqual([bench.id, bench.report.rows[0].name, said.includes(W.run.busy)], ['b', 'ar', true]);
});

test('a report that is dropped on the form leaves what it asks', async () => {
  browser();
  const { bench } = benching(2, { open_report: async (text) => ({ rows: [{ name: text }] }) });
  await bench.add([{ name: 'bench.json', text: async () => 'chain' }]);
  assert.deepEqual([bench.report.rows[0].name, bench.source, bench.estimate().answers], ['chain', 'shipped', 30]);
});

test('a cell of the recorded comparison shows an example of its method and kind, or asks such a question', async () => {
  browser();
  const asked = [['describe', 'What is there?', 'dog'], ['text', 'Why?']].map(([kind, question, shown]) => ({
    ...{ kind, question, media: shown ? [picture(shown)] : [] },
  }));
  const recorded = { rows: [{ name: 'sage' }], settings: { pair: 'pocket' }, asked };
  const { bench, parts } = benching(1, { open_report: async () => recorded });
  const [shown, opened] = [[], []];
  parts.form.on('example', ({ id }) => shown.push(id));
  parts.stage.on('open', (name) => opened.push(name));
  await bench.openReport('');
  await bench.openRace('describe', 'sage');
  assert.deepEqual([shown, opened], [['scene'], []]);
  for (const [kind, method, question] of [['describe', 'tabed', 'What is there?'], ['text', 'sage', 'Why?']]) {
    await bench.openRace(kind, method);
    const { request } = parts.form;
    assert.deepEqual([request.pair, request.methods, request.question], ['pocket', [method], question]);
    assert.deepEqual(request.media, asked.find((one) => one.kind === kind).media);
    assert.equal(parts.stage.notice.text, COMPARE.unrecorded);
  }
  assert.deepEqual([shown, opened], [['scene'], ['race', 'race']]);
});

test('a cell of which no race is recorded greys the race that was there, recorded or the visitor’s own', async () => {
  const held = { ...picture('cat'), path: 'examples/cat.jpg' };
  const asked = [['text', []], ['describe', [held]]].map(([kind, media]) => ({ kind, media, question: 'Why?' }));
  for (const source of ['recorded', 'live']) {
    browser();
    const recorded = { rows: [{ name: 'sage' }], settings: { pair: 'photo' }, asked };
    const { bench, parts } = benching(1, { open_report: async () => recorded });
    const { form, race, stage } = parts;
    form.request.question = 'What is there?';
    stage.show(scene().map(({ record }) => record), { source, question: 'What is there?', ...form.asked }, false);
    assert.equal(form.last !== null, source === 'live');
    await bench.openReport('');
    for (const { kind } of asked) {
      await bench.openRace(kind, 'sage');
      assert.deepEqual([form.request.question, race.meta.source, stage.outdated, stage.away], ['Why?', source, true, false]);
      assert.ok(stage.notice.text.startsWith(`${COMPARE.unrecorded} This race answers “What is there?”.`));
      assert.deepEqual(stage.offers, []);
    }
    form.files.join(picture('mine'));
    assert.equal(stage.away, source === 'recorded');
  }
});

test('the race of a cell opens unless the visitor left or wanted another meanwhile; what fails is told', async () => {
  browser();
  const replies = [];
  const { bench, parts, said } = benching(1, { bench_race: () => new Promise((ok) => replies.push(ok)) });
  bench.id = 'b';
  const shown = [];
  parts.stage.show = (_, { question }) => shown.push(question);
  parts.race.setFocus = () => null;
  const lines = '{"k":"done"}';
  const opened = ['left', 'first', 'second'].map((question, i) => {
    if (i === 1) bench.leave();
    return [bench.openRace('describe', 'sage'), replies[i]({ question, lines })][0];
  });
  await Promise.all(opened);
  assert.deepEqual([shown, said], [['second'], []]);
  const opening = bench.openRace('describe', 'sage');
  replies[3]({ problem: 'No such comparison.' });
  await opening;
  assert.deepEqual([shown.length, said], [1, ['No such comparison.']]);
});

test('a bench that asks nothing says why', async () => {
  browser();
  const { asked, bench, parts, said } = benching(1);
  const cases = [
    [{ methods: [] }, COMPARE.noMethod],
    [{ methods: ['lvspec'], fields: { ...bench.fields, temperature: 1 } }, W.ask.greedy(['LVSpec'])],
    [{ methods: ['sage'], source: 'files' }, COMPARE.noFile],
    [{ source: 'form' }, COMPARE.noQuestion],
  ];
  for (const [form, why] of cases) {
    await Object.assign(bench, form).run();
    assert.deepEqual([said.at(-1), asked.length], [why, 0]);
  }
  parts.form.request.pair = 'photo'; // which has no head for TABED
  assert.equal(bench.supports({ name: 'tabed' }), false);
});

test('what a bench asks of files and of the form', async () => {
  browser();
  const { bench, parts } = benching(1);
  parts.api.upload = async ({ name }) => ({ path: `/tmp/${name}` });
  const left = [];
  bench.on('files', (n) => left.push(n));
  await bench.add([{ name: 'a.PNG' }, { name: 'notes.txt' }]);
  const lines = async (source) => {
    bench.source = source;
    return questionsOf(bench);
  };
  assert.deepEqual([left, bench.read, await lines('shipped')], [[1], 1, {}]);
  const files = await lines('files');
  assert.deepEqual(JSON.parse(files.lines), { id: 'a.PNG', question: 'Describe it.', media: ['a.PNG'] });
  assert.deepEqual(files.files, [{ path: '/tmp/a.PNG', name: 'a.PNG' }]);
  await bench.add([{ name: 'a.PNG' }]); // of another folder
  assert.deepEqual((await lines('files')).files.map(({ name }) => name), ['a.PNG', '2 a.PNG']);
  for (const written of ['nonsense', '{}\n{}']) await bench.add([{ name: 'q.jsonl', text: async () => written }]);
  assert.deepEqual([bench.files.length, bench.read, (await lines('files')).lines], [3, 2, '{}\n{}']);
  parts.form.request.media = [picture('b'), picture('b')];
  const form = await lines('form');
  assert.deepEqual([JSON.parse(form.lines).media, form.files.length], [['/b', '/b'], 1]);
});

test('how long a bench takes follows from the last race, or bench', () => {
  browser();
  const { bench, parts } = benching(1);
  bench.methods = ['sage'];
  assert.deepEqual([bench.estimate().answers, bench.estimate().seconds], [60, undefined]);
  parts.race.show(scene().map(({ record }) => record), { asked: parts.form.request });
  bench.speeds.learn({ list: [], meta: {} }); // of no pair that is known
  bench.speeds.learn(parts.race);
  const { seconds } = bench.estimate();
  bench.fields.repeats = 6;
  assert.ok(seconds > 0 && Math.abs(bench.estimate().seconds - 2 * seconds) < 1e-6);
  bench.id = 'b';
  const rows = [10, 40].map((speed) => ({ tokens_per_s: speed, first_token_ms: 200 }));
  const settings = { pair: parts.form.request.pair };
  bench.take({ settings, rows });
  bench.take({ settings, rows: [{ tokens_per_s: null }] }); // nothing was answered yet
  assert.equal(bench.speeds.seconds(settings.pair, 80), 0.2 + 80 / 16);
});
