/* A bench: methods on many questions, asked one after the other, each a separate run in the server's line. The server
   keeps the answers and folds them. Events: 'change' of what will be asked; 'files' number of those left out;
   'running'; 'stopping'; 'progress' part that is done; 'report'; 'say' {text, wrong}; 'restored'. */

import { coloursOf } from './colours.js';
import { Emitter } from './emitter.js';
import * as kept from './keep.js';
import { chosen, unsampled } from './request.js';
import { deliver } from './sharing.js';
import { Speeds } from './speeds.js';
import { COMPARE } from '../words/comparewords.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** @import { Api, Example, Media, Method, Parts } from './types.js' */

const FRESH_MS = 2000; // how old a table may be while the bench runs
const WAIT_MS = 300; // until we look again whether a race of this page is over

/** @typedef {'shipped' | 'files' | 'form' | 'examples'} Source */
/** @typedef {{ kind: string, question: string, media: Media[] }} Asked */

/** What is compared, the bench that does it, and its report. */
export class Bench extends Emitter {
  running = false;
  /** The visitor has chosen methods, or a bench has. */
  touched = false;
  /** @type {Source} */
  source = 'shipped';
  /** Names of the ticked methods. @type {string[]} */
  methods = [];
  /** What is asked of every picture. */
  question = '';
  /** @type {{ [name: string]: number }} */
  fields = { questions: 10, repeats: 3, tokens: 64, temperature: 0 };
  /** @type {File[]} */
  files = [];
  /** How many questions they have. */
  read = 0;
  /** The name that the server gave the bench. @type {string | undefined} */
  id;
  /** Its tables, charts and answers, as the server folds them. @type {any} */
  report = null;
  /** Titles of methods left out since they are not defined for sampling. @type {string[]} */
  left = [];
  speeds = new Speeds();

  /** @param {Parts} parts @param {string[]} endings of files that can be asked about */
  constructor(parts, endings) {
    super();
    this.parts = parts;
    this.endings = endings;
  }

  /** The form's request, for its pair, pictures, question and settings. */
  get request() {
    return this.parts.form.request;
  }

  /** The form's pair. */
  get pair() {
    return this.parts.form.pairFacts;
  }

  /** The methods that can be compared. */
  get offered() {
    return this.parts.catalog.methods.filter(({ name }) => name !== 'ar' && name !== 'custom');
  }

  /** Whether the pair runs a method. @param {Method} method */
  supports({ name }) {
    return this.pair.methods[name] === true;
  }

  /** The ticked methods that the pair supports. */
  get chosen() {
    const possible = this.offered.filter((m) => this.supports(m) && this.methods.includes(m.name));
    return possible.map(({ name }) => name);
  }

  /** Whether no more methods can be ticked: not more than can race. */
  get full() {
    return this.chosen.length >= this.parts.catalog.limits.lanes;
  }

  /** Open the view: at first it has the form's methods and the recorded comparison. */
  open() {
    if (!this.touched) this.methods = [...this.request.methods];
    this.touched = true;
    this.emit('change');
    if (!this.report && !this.running && !this.id) this.openReport('');
  }

  /** Tick the papers' methods. */
  choosePapers() {
    this.methods = [...this.parts.catalog.papers];
    this.changed();
  }

  /** Show what `bench --json` printed; the recorded comparison if it is empty. @param {string} text */
  async openReport(text) {
    const report = await this.parts.api.server.open_report(text).catch(() => null);
    // Nobody asked for the recorded one: a bench that began meanwhile, or was kept, stands before it.
    if (!text && (this.id || this.running)) return;
    if (report?.problem) this.say(report.problem, true);
    else if (report?.rows) {
      this.id = undefined;
      this.take(report);
    }
  }

  /** Show the race on the first question of a kind. @param {string} kind @param {string} name of a method */
  async openRace(kind, name) {
    const { api, race, stage } = this.parts;
    if (!this.id) {
      this.openLike(kind, name);
      return;
    }
    const made = await api.server.bench_race({ bench: this.id, kind }).catch(() => null);
    if (!made?.lines) return;
    const { question, compared } = made;
    stage.show(trace.parse(made.lines), { source: 'recorded', question, compared }, true);
    race.setFocus(name);
  }

  /** Show an example's race by a method on a question of a kind; where there is none, the form asks such a question.
   *  @param {string} kind @param {string} name of a method */
  openLike(kind, name) {
    const { catalog, form, stage } = this.parts;
    const { asked: all, settings } = this.report;
    const { pair } = settings;
    /** @type {Asked[]} */
    const asked = all.filter((/** @type {Asked} */ q) => q.kind === kind);
    /** @param {Example} e */
    const like = (e) =>
      e.pair === pair && e.methods.includes(name) && asked.some((q) => q.question === e.question);
    const example = catalog.examples.find(like);
    if (example) form.choose(example);
    else {
      form.restore({ ...asked[0], pair, methods: [name], settings: {} });
      stage.emit('open', 'race');
      stage.tell(COMPARE.unrecorded);
    }
  }

  /** Tick or untick a method. @param {string} name @param {boolean} on */
  toggle(name, on) {
    const others = this.methods.filter((other) => other !== name);
    this.methods = on ? [...others, name] : others;
  }

  /** Tell of a change, and keep the form. */
  changed() {
    this.emit('change');
    this.keep();
  }

  /** How many answers are asked for, and how long they take if all are as long as they may be; undefined if unknown. */
  estimate() {
    const { questions, repeats, tokens } = this.fields;
    const known = { form: 1, files: this.read }[/** @type {string} */ (this.source)];
    const asked = Math.min(questions, known ?? questions);
    const answers = asked * repeats * (1 + this.chosen.length);
    const each = this.speeds.seconds(this.request.pair, tokens);
    return { answers, tokens, seconds: each && answers * each, load: 1 - this.speeds.free };
  }

  /** Take files to ask about. A report is opened; what is neither questions nor a picture or clip
   *  is left out. @param {File[]} files */
  async add(files) {
    const report = files.find(({ name }) => /\.json$/i.test(name));
    if (report) return this.openReport(await report.text());
    /** @param {File} file */
    const fits = ({ name }) => this.endings.some((ending) => name.toLowerCase().endsWith(ending));
    const some = files.filter(fits);
    this.files.push(...some);
    this.say('');
    const lines = await written(this.files)?.text();
    this.read = lines?.split('\n').filter((text) => text.trim()).length ?? this.files.length;
    return this.emit('files', files.length - some.length);
  }

  removeFiles() {
    this.files = [];
    this.read = 0;
    this.emit('files', 0);
  }

  /** What is asked, as the server reads it: {lines, name, files}; empty for the pair's own questions. */
  async lines() {
    const { source } = this;
    const { question, media, pair } = this.request;
    const { image: words } = this.pair.describe; // what pictures without a question are asked
    if (source === 'form') return { lines: line(question || words, media), files: named(media) };
    if (source === 'files')
      return sendFiles(this.files, this.question || words, this.parts.api.upload);
    if (source === 'shipped') return {};
    const examples = this.parts.catalog.examples.filter((e) => e.pair === pair);
    const rows = examples.map((e) => line(e.question || words, e.media, e.id));
    return { lines: rows.join('\n'), files: named(examples.flatMap((e) => e.media)) };
  }

  /** Why nothing can be asked, in a sentence; undefined if it can. @param {string[]} methods */
  refusal(methods) {
    const { question, media } = this.request;
    if (!methods.length) return this.left.length ? W.ask.greedy(this.left) : COMPARE.noMethod;
    if (this.source === 'files' && !this.files.length) return COMPARE.noFile;
    const empty = this.source === 'form' && !question.trim() && !media.length;
    return empty ? COMPARE.noQuestion : undefined;
  }

  /** Begin a bench on the server, and follow it. */
  async run() {
    const { api, catalog, runner } = this.parts;
    const { pair, settings, system } = this.request;
    const { tokens, ...numbers } = this.fields;
    const greedy = unsampled(catalog, { methods: this.chosen, settings }, numbers.temperature);
    const methods = this.chosen.filter((name) => !greedy.some((method) => method.name === name));
    this.left = greedy.map(({ title }) => title);
    const refusal = this.refusal(methods);
    if (refusal) {
      this.say(refusal, true);
      return;
    }
    this.setRunning(true);
    this.say(COMPARE.sending);
    const asked = await this.lines().catch(() => null);
    const given = { ...asked, methods, ...numbers, max_new_tokens: tokens };
    const made = { pair, settings, system, ...chosen(this.request), ...given };
    const begun = asked && (await api.server.start_bench(made).catch(() => null));
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

  /** Go on with a bench that was stopped. */
  async goOn() {
    this.setRunning(true);
    await this.follow();
  }

  /** Ask for one question after the other until the bench is done, is stopped, or cannot go on.
   *  size: how much it asks in all. */
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
      if (failure === undefined) break;
      if (failure === null && this.running) done += 1;
      if (Date.now() - fresh <= FRESH_MS) continue;
      await this.refresh();
      fresh = Date.now();
    }
    await this.refresh();
    this.setRunning(false);
    this.tellEnd(size, failure ?? null);
  }

  /** Have the next question answered. Returns what failed, null, or undefined if the bench was stopped
   *  before. @param {string} text what is said meanwhile */
  async askNext(text) {
    const { runner } = this.parts;
    this.say(text);
    while (runner.busy && this.running) await new Promise((ok) => setTimeout(ok, WAIT_MS));
    if (!this.running) return undefined;
    /** A question tells no stage after its pictures are opened. @param {string} stage */
    const status = (stage) => {
      if (this.running) this.say(stage === W.run.stage.media ? text : `${text} ${stage}`.trim());
    };
    return runner.run({ bench: this.id }, { status, record: () => {} });
  }

  /** Whether a bench can be gone on with. */
  get unfinished() {
    return this.report !== null && this.report.done < this.report.total;
  }

  /** Say how the bench ended. failure: what went wrong, null if nothing did.
   *  @param {{ questions: number, repeats: number }} size @param {string | null} failure */
  tellEnd(size, failure) {
    const ended = this.report?.done ? COMPARE.stopped : COMPARE.stoppedEmpty;
    const over = this.report && !this.unfinished;
    this.emit('restored');
    this.say(failure ?? (over ? COMPARE.done(size) : ended), failure !== null);
  }

  /** Fetch the tables of what is done so far. */
  async refresh() {
    const report = await this.parts.api.server.bench_progress(this.id).catch(() => null);
    if (report?.rows) this.take(report);
  }

  /** Show a report, its methods coloured.
   *  @param {{ rows: { name: string, colour?: number }[] }} report */
  take(report) {
    const colours = coloursOf(report.rows.map(({ name }) => name));
    report.rows.forEach((row, i) => Object.assign(row, { colour: colours[i] }));
    this.report = report;
    this.emit('report');
  }

  /** End it with what is computed now; until that is over, no other one can begin. */
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

  /** Keep the form, and which bench it began, for a reload of this tab. */
  keep() {
    const { id, running: left, source, chosen: methods, fields } = this;
    kept.keepBench({ id, left, source, methods, fields });
  }

  /** Bring back the form as this tab left it, with what the server has of its bench. */
  async restore() {
    const { left, ...form } = kept.bench() ?? {};
    if (!form.fields) return;
    Object.assign(this, form);
    this.touched = true;
    this.emit('change');
    if (this.id) await this.refresh();
    this.emit('restored');
    if (left) this.say(COMPARE.left(Boolean(this.report)), true);
  }

  /** Offer the heat map as a file. @param {'svg' | 'pdf'} as */
  saveFigure(as) {
    this.parts.download(`comparison.${as}`, this.report.figure, 'image/svg+xml');
  }

  /** Offer tables and traces as one archive, made by the server. */
  async save() {
    const made = await this.parts.api.server.bench_archive(this.id).catch(() => null);
    const file = ['bench.zip', 'application/zip'];
    const problem = await deliver(this.parts, made, file, COMPARE.notSaved);
    if (problem) this.say(problem, true);
  }
}

/** Send the visitor's own files, and return what asks about them.
 *  @param {File[]} files @param {string} question @param {Api['upload']} upload */
async function sendFiles(files, question, upload) {
  const questions = written(files);
  const sent = [];
  for (const file of files.filter((other) => other !== questions)) {
    const { path } = await upload(file);
    sent.push({ path, name: file.name });
  }
  const rows = sent.map(({ name }) => JSON.stringify({ id: name, question, media: [name] }));
  const lines = (await questions?.text()) ?? rows.join('\n');
  return { lines, name: questions?.name ?? 'questions.jsonl', files: sent };
}

/** The file of questions. @param {File[]} files */
const written = (files) => files.find((file) => /\.jsonl$/i.test(file.name));

/** A question as a line of a file of questions. @param {string} question @param {Media[]} media
 *  @param {string} [id] */
const line = (question, media, id) =>
  JSON.stringify({ id, question, media: media.map((m) => m.path) });

/** The files that lines of questions name, each once, under the name that they have there.
 *  @param {Media[]} media */
const named = (media) => [...new Map(media.map((m) => [m.path, { ...m, name: m.path }])).values()];
