/* The form: what will be asked next, and what that means for the conversation. Controls write its `request`. */

import { better, scope } from './scope.js';
import { Emitter } from './emitter.js';
import { Files } from './files.js';
import { askedExample, giveWay, ownSettings, requestOf } from './examples.js';
import { blank, chosen, loadingRefusal, pairOf } from './request.js';
import { parts, paths, runnable, takeOver, tooMuch } from './request.js';
import { W } from '../words/words.js';

/** @extends {Emitter<FormEvents>} */
export class Form extends Emitter {
  running = false;
  /** @type {Last | null} */
  last = null;
  followUp = false; // whether the next question is wanted to go on from the last one
  /** @type {Replaced | null} */
  replacedExample = null;
  problem = '';
  scopeShown = true; // whether `scope` may stand above the answers already
  /** The run that waits for files on their way. @type {RunOptions | null} */
  waits = null;

  /** @param {Catalog} catalog @param {Api['upload']} upload
   *  @param {(file: File, most: number) => Promise<File>} shrink to so many pixels @param {CheckClip} check */
  constructor(catalog, upload, shrink, check) {
    super();
    this.catalog = catalog;
    this.request = blank(catalog);
    this.home = this.request.pair; // asked about pictures of the visitor's own
    const small = (/** @type {File} */ file) => shrink(file, 1e6 * this.detail);
    this.files = new Files(catalog.limits, upload, small, check);
    this.files.on('sent', () => {
      const { waits } = this;
      this.waits = null;
      if (waits) this.say('');
      if (waits && !this.files.refused.length) this.run(waits);
    });
    this.files.on('chosen', ({ media, coming }) => this.takeMedia(media, coming));
  }

  /** Millions of pixels of a picture that the model is shown. */
  get detail() {
    const { loading, pair } = this.request;
    const [, , standard] = this.catalog.limits.picture_detail;
    return Math.max(standard, Number(loading[pair]?.picture_detail ?? 0));
  }

  /** Take in the files; an example's question and pair may give way.
   *  @param {Media[]} media @param {number} [coming] files on their way */
  takeMedia(media, coming = 0) {
    const { replacedExample: before, request } = this;
    const { media: old, question, pair, methods, settings } = request;
    this.settle();
    this.replacedExample = null;
    const asks = [before?.question, ''].includes(question);
    const back = before && asks && paths(media) === paths(before.media); // the new file was no picture
    const changes = back ? before : giveWay(this, media, coming);
    if (changes && !back) this.replacedExample = { media: old, question, pair, methods, settings };
    Object.assign(request, changes, { media });
    if (changes) this.emit('update');
    this.changed();
  }

  /** With an example's question its settings go. @param {'question' | 'system'} key @param {string} text */
  type(key, text) {
    const example = askedExample(this);
    this.request[key] = text;
    if (example && !askedExample(this)) {
      this.request.settings = ownSettings(this);
      this.emit('update');
    }
    this.changed();
  }

  get turns() {
    return this.request.history;
  }

  /** @param {Turn[]} turns */
  setTurns(turns) {
    this.request.history = turns;
    this.emit('turns');
    this.changed();
  }

  /** What Run would do (`NextTurn`). A single question is followed only if the visitor chose so.
   *  @returns {NextTurn} */
  get next() {
    const { followUp, last, mayFollow, request } = this;
    if (!last) return 'same';
    const { asked } = last;
    const shown = paths(request.media) === paths(asked.media);
    if (shown && request.question.trim() === asked.question.trim()) return 'same';
    if (request.pair !== asked.pair) return 'new';
    if (shown && !request.question.trim()) return 'new'; // the picture is described
    const begun = shown && asked.history.length > 0;
    return begun || (followUp && mayFollow) ? 'on' : 'new';
  }

  /** Whether the last question can be followed: by the same pair, with its files or more. */
  get mayFollow() {
    const { last, request } = this;
    if (!last || request.pair !== last.asked.pair) return false;
    return request.media.length > 0 || last.asked.media.length === 0;
  }

  /** What is asked: where nothing is typed, to describe what is shown. @param {Asking} request */
  questionOf({ pair, question, media } = this.request) {
    const { describe } = pairOf(this.catalog, pair) ?? this.catalog.pairs[0];
    if (question.trim() || !media.length) return question;
    if (media.some((m) => m.kind === 'video')) return describe.video;
    return media.length > 1 ? describe.images : describe.image;
  }

  /** The turns that the question in the form continues. @returns {Turn[]} */
  get earlier() {
    const { last, next, request } = this;
    if (!last || next === 'same') return request.history;
    return next === 'on' ? [...last.asked.history, last.turn] : [];
  }

  /** Add the last question to the conversation, or begin another one. */
  turnOver() {
    const { earlier, last, next, request } = this;
    this.followUp = false;
    if (!last || next === 'same') return;
    const sent = new Set(last.asked.media.map((m) => m.path));
    if (next === 'on') request.media = request.media.filter((m) => !sent.has(m.path));
    this.last = null; // it is in the conversation now, or in none
    this.setTurns(earlier);
    this.files.show(request.media);
  }

  /** Bring back the form from before a run that came to nothing. @param {Before} before */
  undo({ turns, media, last }) {
    this.setTurns(turns);
    this.last = last;
    this.request.media = media;
    this.files.show(media);
    this.changed();
  }

  /** Await the next question. @param {{ question?: string, media?: Media[] }} [given] put in already */
  nextQuestion({ question = '', media = [] } = {}) {
    Object.assign(this.request, { question, media });
    this.update();
    this.emit('focus');
  }

  get pairFacts() {
    return pairOf(this.catalog, this.request.pair) ?? this.catalog.pairs[0];
  }

  /** Why a method cannot be chosen now. @param {Method} method */
  refusal(method) {
    const served = this.pairFacts.methods[method.name];
    if (typeof served === 'string') return served;
    const { lanes } = this.catalog.limits;
    const { methods } = this.request;
    const full = methods.length >= lanes && !methods.includes(method.name);
    return full ? W.ask.fullLanes(lanes) : null;
  }

  /** @param {string} name @param {boolean} on */
  toggle(name, on) {
    const { request } = this;
    const method = this.catalog.methods.find((m) => m.name === name);
    const refusal = on && method && this.refusal(method);
    if (refusal) this.emit('refused', refusal);
    else request.methods = [...request.methods.filter((m) => m !== name), ...(on ? [name] : [])];
    this.update();
  }

  get paperMethods() {
    return this.catalog.papers.filter((name) => this.pairFacts.methods[name] === true);
  }

  choosePapers() {
    this.request.methods = this.paperMethods;
    this.update();
  }

  /** Also put its race on the page. @param {Example} example */
  choose(example) {
    this.fill(example);
    this.emit('example', example);
  }

  /** Ask what an example asks. @param {Example} example */
  fill(example) {
    this.waits = null;
    this.files.letGo();
    Object.assign(this.request, this.of(example), { history: this.turns });
    this.update();
  }

  /** The request that an example stands for. @param {Example} example */
  of = (example) => requestOf(this.catalog, example);

  /** A text that is equal if the same race is requested. */
  key(request = this.request) {
    return JSON.stringify(parts(request));
  }

  /** What a race knows of a request that it answers. */
  get asked() {
    return { form: this.key(), asked: structuredClone(this.request) };
  }

  /** What the form asks differently, in words. @param {FormRequest} asked */
  changedSince(asked) {
    const [before, now] = [asked, this.request].map((r) => parts(r).map((x) => JSON.stringify(x)));
    const bare = !this.request.media.length;
    const words = W.run.changes.map((word, i) => (i === 1 && bare ? W.run.without : word));
    return words.filter((_, i) => before[i] !== now[i]);
  }

  /** Put a request into the form. Returns the names not known here. @param {Partial<FormRequest>} request */
  restore(request) {
    const { taken, unknown } = takeOver(this, request);
    Object.assign(this.request, taken);
    this.update();
    return unknown;
  }

  /** Default methods and an untouched example give way to the pair's. @param {string} id */
  changePair(id) {
    const { request, catalog } = this;
    const [before, now] = [request.pair, id].map((name) => pairOf(catalog, name));
    this.home = id;
    if (now && String(request.methods) === String(before?.first)) request.methods = [...now.first];
    request.pair = id;
    const own = catalog.examples.find((e) => e.pair === id);
    const shown = askedExample(this);
    if (own && shown && shown.pair !== id) this.choose(own);
    else this.update();
  }

  /** What the pair cannot judge about the question, in a sentence. */
  get scope() {
    const { question, media } = this.request;
    return question.trim() || media.length ? scope(this) : '';
  }

  /** Another pair that can judge it. */
  get fittingPair() {
    return this.scope ? better(this) : undefined;
  }

  /** The request was replaced. */
  update() {
    this.files.show(this.request.media);
    this.emit('update');
    this.changed();
  }

  changed = () => this.emit('change');

  get runnable() {
    return runnable(this.catalog, this.request, this.request.sampling.temperature);
  }

  /** Emit 'run', or say what is wrong; files on their way are awaited. @param {RunOptions} [options] */
  run({ branch, undrawn, ...over } = {}) {
    if (this.running) return;
    if (this.files.pending.length) {
      this.waits = { branch, undrawn, ...over };
      this.say(W.ask.uploading);
      return;
    }
    const { history: turns, media, question } = this.request;
    if (!question.trim() && !media.length) {
      this.say(W.ask.empty, true);
      this.emit('focus');
      return;
    }
    const before = { turns, media, last: this.last };
    // First, since what would be sent is what is checked; `undo` brings it back.
    this.turnOver();
    const { sampling, loading, ...rest } = structuredClone(this.request);
    const { methods, left: without } = this.runnable;
    const [refused] = rest.media.length ? [] : this.files.refused;
    const wrong =
      (refused && W.media.refusedRun(refused.name)) ??
      tooMuch(this) ??
      loadingRefusal(this.pairFacts, this.request) ??
      (without.length && !methods.length ? W.ask.greedy(without) : null);
    if (wrong) {
      this.undo(before);
      this.say(wrong, true);
      return;
    }
    this.files.forgive(); // it runs without them
    const choices = { ...chosen({ ...rest, sampling, loading }), ...over };
    const request = { ...rest, methods, baseline: true, ...choices };
    this.emit('run', { request, branch, undrawn, without, before });
  }

  /** @param {boolean} running */
  setRunning(running) {
    this.running = running;
    this.emit('running');
    if (!running) this.say('');
  }

  /** Also remember what is wrong as `problem`. @param {string} text */
  say(text, wrong = false) {
    this.problem = wrong ? text : '';
    super.say(text, wrong);
  }

  /** Take back what was said to be wrong. */
  settle() {
    if (!this.problem) return;
    this.say('');
    this.emit('settled');
  }
}
