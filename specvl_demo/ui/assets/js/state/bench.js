/* A bench: methods on many questions, each a run. The server keeps and folds the answers. */

import { coloursOf } from './colours.js';
import { Emitter } from './emitter.js';
import { ownSettings } from './examples.js';
import * as kept from './keep.js';
import { questionFile, questionsOf } from './questions.js';
import { chosen, runnable } from './request.js';
import { deliver } from './sharing.js';
import { COMPARE } from '../words/comparewords.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

const FRESH_MS = 2000; // how old a table may be while the bench runs
const WAIT_MS = 300; // until it looks again for the end of a race

/** How fast pairs answered on this page. */
class Speeds {
  /** Of each pair, the last seen. @type {{ [pair: string]: Speed }} */
  raced = {};

  /** @param {Pick<Race, 'list' | 'meta'>} race */
  learn({ list, meta }) {
    const tokens = sum(list.map((lane) => lane.tokens.length));
    if (!meta.asked || !tokens) return;
    const seconds = sum(list.map((lane) => lane.totalsAfter(Infinity).clock_s));
    const before = sum(list.map((lane) => lane.before)) / list.length;
    this.raced[meta.asked.pair] = { before, token: seconds / tokens };
  }

  /** @param {{ settings: any, rows: any[] }} report of a bench that ran here */
  learnBench({ settings, rows }) {
    const before = rows[0]?.first_token_ms / 1000;
    const token = sum(rows.map((row) => 1 / row.tokens_per_s)) / rows.length;
    if (token < Infinity) this.raced[settings.pair] = { before, token };
  }

  /** Seconds of an answer. @param {string} pair @param {number} tokens */
  seconds(pair, tokens) {
    const raced = this.raced[pair];
    return raced && raced.before + tokens * raced.token;
  }
}

/** @extends {Emitter<BenchEvents>} */
export class Bench extends Emitter {
  running = false;
  /** Whether the visitor, or a bench, has chosen methods. */
  touched = false;
  /** @type {Source} */
  source = 'shipped';
  /** The ticked ones. @type {string[]} */
  methods = [];
  question = '';
  /** @type {{ [name: string]: number }} */
  fields = { questions: 10, repeats: 3, tokens: 64, temperature: 0 };
  /** @type {File[]} */
  files = [];
  read = 0; // questions in them
  /** @type {string | undefined} */
  id;
  opening = false; // a race, which the visitor awaits in Compare
  opened = ''; // what `bench --json` printed; empty for the recorded one
  /** What the server has folded. @type {any} */
  report = null;
  /** Titles of methods that are not defined for sampling. @type {string[]} */
  left = [];
  speeds = new Speeds();

  /** @param {Parts} parts */
  constructor(parts) {
    super();
    this.parts = parts;
  }

  /** How names of files end that can be asked about. */
  get endings() {
    return ['.jsonl', ...this.parts.form.files.types];
  }

  get request() {
    return this.parts.form.request;
  }

  get pair() {
    return this.parts.form.pairFacts;
  }

  get offered() {
    return this.parts.catalog.methods.filter(({ name }) => name !== 'ar' && name !== 'custom');
  }

  /** @param {Method} method */
  supports({ name }) {
    return this.pair.methods[name] === true;
  }

  /** Of chosen methods what the visitor changed in the form, not an example's own settings. */
  get settings() {
    const own = Object.entries(ownSettings(this.parts.form)).filter(
      ([name, values]) => this.chosen.includes(name) && Object.keys(values).length,
    );
    return Object.fromEntries(own);
  }

  get chosen() {
    const possible = this.offered.filter((m) => this.supports(m) && this.methods.includes(m.name));
    return possible.map(({ name }) => name);
  }

  /** Whether no more methods fit. */
  get full() {
    return this.chosen.length >= this.parts.catalog.limits.lanes;
  }

  open() {
    if (!this.touched) this.methods = [...this.request.methods];
    this.touched = true;
    this.emit('change');
    if (!this.report && !this.running && !this.id) this.openReport('');
  }

  choosePapers() {
    this.methods = [...this.parts.catalog.papers];
    this.changed();
  }

  /** What the server answers to a call; null if it does not. @param {string} name @param {unknown} payload */
  call(name, payload) {
    return this.parts.api.server[name](payload).catch(() => null);
  }

  /** Show what `bench --json` printed; if empty, the recorded comparison. @param {string} text */
  async openReport(text) {
    const report = await this.call('open_report', text);
    // Nobody asked for the recorded one.
    if (!text && (this.id || this.running || this.opened)) return;
    if (this.running) this.say(W.run.busy, true);
    else if (report?.problem) this.say(report.problem, true);
    else if (report?.rows) {
      this.id = undefined;
      this.opened = text;
      this.take(report);
    }
  }

  /** @param {string} kind of question @param {string} name of a method */
  async openRace(kind, name) {
    const { form, race, runner, stage } = this.parts;
    if (!this.id) {
      const { example, request } = this.like(kind, name);
      if (example) form.choose(example);
      else {
        form.last = null; // the race on the page is no turn before this question
        stage.offer();
        stage.tell('');
        form.restore(request);
        stage.emit('open', 'race');
        stage.tell(`${COMPARE.unrecorded} ${stage.notice.text}`.trim());
      }
      return;
    }
    this.opening = true;
    const answer = this.call('bench_race', { bench: this.id, kind }).then((made) => made ?? {});
    const made = await stage.latest(answer);
    if (!made || !this.opening) return;
    if (!made.lines) {
      this.say(made.problem ?? (await runner.reason(COMPARE.notOpened)), true);
      return;
    }
    const { question, compared } = made;
    stage.show(trace.parse(made.lines), { source: 'recorded', question, compared }, true);
    race.setFocus(name);
  }

  /** Open no race that was wanted before the visitor went elsewhere. */
  leave() {
    this.opening = false;
  }

  /** The recorded race on a question of this kind, and what asks such a one.
   *  @param {string} kind @param {string} name of a method */
  like(kind, name) {
    const { pair } = this.report.settings;
    /** @type {BenchQuestion[]} */
    const all = this.report.asked ?? [];
    const asked = all.filter((q) => q.kind === kind);
    const asks = (/** @type {Example} */ e) => asked.some((q) => q.question === e.question);
    const example = this.parts.catalog.examples.find(
      (e) => e.pair === pair && e.methods.includes(name) && asks(e),
    );
    return { example, request: { ...asked[0], pair, methods: [name], settings: {} } };
  }

  /** @param {string} name @param {boolean} on */
  toggle(name, on) {
    const others = this.methods.filter((other) => other !== name);
    this.methods = on ? [...others, name] : others;
    this.changed();
  }

  changed() {
    this.emit('change');
    this.keep();
  }

  /** How many answers are asked for, and how long they take at most. */
  estimate() {
    const { questions, repeats, tokens } = this.fields;
    const most = { shipped: questions, files: this.read, form: 1 }[this.source];
    const answers = Math.min(questions, most) * repeats * (1 + this.chosen.length);
    const each = this.speeds.seconds(this.request.pair, tokens);
    return { answers, tokens, seconds: each && answers * each };
  }

  /** Take files to ask about, or open a report. @param {File[]} files */
  async add(files) {
    const report = files.find(({ name }) => /\.json$/i.test(name));
    if (report) return this.openReport(await report.text());
    this.source = 'files';
    this.emit('change');
    const some = files.filter(({ name }) =>
      this.endings.some((ending) => name.toLowerCase().endsWith(ending)),
    );
    // Questions take the place of others: a file that was mended is added again.
    const before = questionFile(some) && questionFile(this.files);
    this.files = [...this.files.filter((file) => file !== before), ...some];
    this.say('');
    const lines = await questionFile(this.files)?.text();
    this.read = lines?.split('\n').filter((text) => text.trim()).length ?? this.files.length;
    return this.emit('files', files.length - some.length);
  }

  removeFiles() {
    this.files = [];
    this.read = 0;
    this.emit('files', 0);
  }

  /** Why nothing can be asked; undefined if it can. @param {string[]} methods */
  refusal(methods) {
    const { question, media } = this.request;
    if (!methods.length) return this.left.length ? W.ask.greedy(this.left) : COMPARE.noMethod;
    if (this.source === 'files' && !this.files.length) return COMPARE.noFile;
    const empty = this.source === 'form' && !question.trim() && !media.length;
    return empty ? COMPARE.noQuestion : undefined;
  }

  async run() {
    const { catalog, runner } = this.parts;
    const { settings } = this;
    const { pair, system } = this.request;
    const { tokens, ...numbers } = this.fields;
    const wanted = { methods: this.chosen, settings };
    const { methods, left } = runnable(catalog, wanted, numbers.temperature);
    this.left = left;
    const refusal = this.refusal(methods);
    if (refusal) {
      this.say(refusal, true);
      return;
    }
    this.setRunning(true);
    this.say(COMPARE.sending);
    const asked = await questionsOf(this).catch(() => null);
    const given = { ...asked, methods, ...numbers, max_new_tokens: tokens };
    const made = { pair, settings, system, ...chosen(this.request), ...given };
    const begun = asked && (await this.call('start_bench', made));
    if (!begun?.bench) {
      this.setRunning(false);
      this.say(begun?.problem ?? (await runner.reason(COMPARE.notSent)), true);
      return;
    }
    this.id = begun.bench;
    this.report = null;
    this.emit('report');
    this.keep();
    await this.follow(begun);
  }

  async goOn() {
    this.setRunning(true);
    await this.follow();
  }

  /** Ask for one question after the other. size: how much is asked in all. */
  async follow(size = this.report) {
    const { total } = size;
    let done = this.report?.done ?? 0;
    const first = done;
    const began = Date.now();
    let failure = null;
    for (let fresh = 0; this.running && failure === null && done < total;) {
      const left = done > first ? ((Date.now() - began) / (done - first)) * (total - done) : null;
      this.emit('progress', done / total);
      failure = await this.askNext(COMPARE.asking(done, size, left && left / 1000));
      if (failure === null && this.running) done += 1;
      if (Date.now() - fresh <= FRESH_MS) continue;
      await this.refresh();
      fresh = Date.now();
    }
    await this.refresh();
    this.setRunning(false);
    this.tellEnd(size, failure);
  }

  /** Returns what failed. @param {string} text said meanwhile @returns {Promise<string | null>} */
  async askNext(text) {
    const { runner } = this.parts;
    this.say(text);
    while (runner.busy && this.running) await new Promise((ok) => setTimeout(ok, WAIT_MS));
    if (!this.running) return null;
    return runner.run(
      { bench: this.id },
      {
        status: (stage) => {
          const told = stage !== W.run.stage.media;
          if (this.running) this.say(told ? `${text} ${stage}`.trim() : text);
        },
        record: () => {},
      },
    );
  }

  get unfinished() {
    return this.report !== null && this.report.done < this.report.total;
  }

  /** @param {{ questions: number, repeats: number }} size @param {string | null} failure */
  tellEnd(size, failure) {
    const ended = this.report?.done ? COMPARE.stopped : COMPARE.stoppedEmpty;
    const over = this.report && !this.unfinished;
    this.emit('restored');
    this.say(failure ?? (over ? COMPARE.done(size) : ended), failure !== null);
  }

  async refresh() {
    const report = await this.call('bench_progress', this.id);
    if (report?.rows) this.take(report);
  }

  /** @param {{ rows: ReportRow[] }} report */
  take(report) {
    const colours = coloursOf(report.rows.map(({ name }) => name));
    report.rows.forEach((row, i) => Object.assign(row, { colour: colours[i] }));
    this.report = report;
    if (this.id) this.speeds.learnBench(this.report);
    this.emit('report');
  }

  /** Stop after what is computed now; until then no other one can begin. */
  stop() {
    const { runner } = this.parts;
    this.running = false;
    this.emit('stopping');
    this.say(COMPARE.stopping);
    if (runner.request?.bench) runner.stop(); // a race that it waits for goes on
  }

  /** @param {boolean} on */
  setRunning(on) {
    this.running = on;
    this.emit('running');
    this.keep();
  }

  /** For a reload of this tab. */
  keep() {
    const { id, running: left, source, chosen: methods, fields } = this;
    kept.bench.keep({ id, left, source, methods, fields });
  }

  async restore() {
    const { left, ...form } = kept.bench.read() ?? {};
    if (!form.fields) return;
    Object.assign(this, form);
    this.touched = true;
    this.emit('change');
    if (this.id) await this.refresh();
    this.emit('restored');
    if (left) this.say(COMPARE.left(Boolean(this.report)), true);
  }

  /** @param {'svg' | 'pdf'} as */
  saveFigure(as) {
    this.parts.download(`comparison.${as}`, this.report.figure, 'image/svg+xml');
  }

  /** Offer tables and traces as a zip. */
  async save() {
    const made = await this.call('bench_archive', this.id ?? { report: this.opened });
    const file = ['bench.zip', 'application/zip'];
    const problem = await deliver(this.parts, made, file, COMPARE.notSaved);
    if (problem) this.say(problem, true);
  }
}

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
