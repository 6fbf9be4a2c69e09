/* Which race is on the page, and what is told around it. */

import { Emitter } from './emitter.js';
import { revive } from './revive.js';
import { point } from '../records/highlights.js';
import * as trace from '../records/trace.js';
import { doubt } from '../records/verdict.js';
import { W } from '../words/words.js';

/** @extends {Emitter<StageEvents>} */
export class Stage extends Emitter {
  notice = { text: '', wrong: false };
  /** @type {Offer[]} */
  offers = [];
  waiting = '';
  undrawn = false;
  outdated = false;
  away = false; // a recorded race makes way for the visitor's own pictures
  /** What is to be shown as soon as it is here. @type {Promise<unknown> | null} */
  coming = null;

  /** @param {Parts} parts */
  constructor(parts) {
    super();
    this.parts = parts;
    const { race, form } = parts;
    race.on('reset', () => {
      this.setWaiting('');
      this.outdated = this.away = false;
      this.emit('outdated');
      this.tell('');
      this.offer();
    });
    form.on('change', () => this.compareWithForm());
    form.on('settled', () => this.tell(''));
    form.on('say', ({ text, wrong }) => wrong && this.tell(text, true));
  }

  /** Set the notice: what is wrong, or that the race is not the form's. @param {string} text */
  tell(text, wrong = false) {
    this.notice = { text, wrong };
    this.emit('notice');
  }

  /** Say what the machine does while nothing is written. @param {string} text */
  setWaiting(text) {
    this.waiting = text;
    this.emit('waiting');
  }

  /** @param {Offer[]} next */
  offer(...next) {
    this.offers = next;
    this.emit('offers');
  }

  /** Tell whether the form asks another race; an error stays visible. */
  compareWithForm() {
    const { form, race, replay } = this.parts;
    const { form: key, asked, question, scope, source } = race.meta;
    const other = key !== undefined && key !== form.key();
    this.outdated = !form.running && other && form.next === 'same';
    this.away = this.outdated && source === 'recorded' && form.files.brought;
    this.emit('outdated');
    if (this.outdated && replay.playing) replay.finish();
    form.scopeShown = other || form.scope !== scope; // else it stands above the answers
    form.emit('scope');
    if (this.notice.wrong) return;
    const changes = asked ? form.changedSince(asked) : [];
    const followed = asked && form.turns.length > asked.history.length;
    const differs = followed ? W.chat.next : W.run.outdated(question || W.chat.nothing, changes);
    this.tell(this.outdated && !this.away ? differs : '');
  }

  /** @param {AnyRecord[]} records @param {Meta} meta @param {boolean} play it back */
  show(records, meta, play) {
    const { drawing, form, race, replay, still } = this.parts;
    if (form.running) {
      form.say(W.run.busy, true);
      return;
    }
    this.coming = null;
    form.last = null;
    race.show(records, meta);
    this.offerNext();
    this.emit('open', 'race');
    form.say('');
    this.compareWithForm();
    if (meta.gone) this.tell(W.run.gone(meta.gone), true);
    if (meta.file) this.tell(W.run.fromFile(meta.file));
    if (!play || still()) {
      point(race);
      return;
    }
    replay.replay();
    if (drawing.share === undefined) drawing.measure(() => replay.playing).catch(() => null);
  }

  /** Await what is to be shown. Returns null if the visitor chose another race, or ran one, meanwhile.
   *  @template T @param {Promise<T>} answer @returns {Promise<T | null>} */
  async latest(answer) {
    this.coming = answer;
    await Promise.allSettled([answer]);
    return this.coming === answer ? answer : null;
  }

  /** Show a kept race again, with its request and its files. @param {AnyRecord[]} records @param {Meta} meta */
  async again(records, meta) {
    const { form } = this.parts;
    if (form.running || !meta.asked) {
      this.show(records, meta, true);
      return;
    }
    const own = await this.latest(revive(meta.asked, this.parts));
    if (!own) return;
    form.setTurns(own.asked.history);
    form.restore(own.asked);
    this.show(records, { ...meta, ...own, form: form.key() }, true);
  }

  /** What brings back the race of a name, if anything does. @param {string} [name] */
  wayBack(name) {
    const { archive, catalog, form } = this.parts;
    const example = catalog.examples.find(({ id }) => id === name);
    const run = archive.runs.find(({ records }) => trace.first(records).request === name);
    if (example) return () => form.choose(example);
    return run && (() => this.again(run.records, run.meta));
  }

  /** Show its race. @param {Example} example */
  async example(example) {
    const { form, race } = this.parts;
    if (form.running) return;
    const { id, fails: scope = '', trace: from, ...facts } = example;
    try {
      const records = await this.latest(trace.fetched(from));
      if (!records) return;
      const asked = form.of(example);
      const own = { example: id, from, scope, form: form.key(asked), asked };
      this.show(records, { source: 'recorded', ...facts, ...own }, true);
    } catch (fault) {
      race.clear({ question: facts.question });
      this.emit('open', 'race');
      form.say(/** @type {Error} */ (fault).message, true);
    }
  }

  /** The lane that a follow-up continues, where that is not AR's whole answer. */
  get from() {
    const { followed, baseline } = this.parts.race;
    const cut = (baseline && followed !== baseline) || followed?.end?.stop === 'cancelled';
    return followed && cut ? followed.title : null;
  }

  /** A visitor's own race can be followed, once; a disturbed one can be measured undrawn. */
  offerNext() {
    const { race, form } = this.parts;
    const { source, asked, gone } = race.meta;
    const live = source === 'live';
    const ended = race.list.every((lane) => lane.end && lane.end.stop !== 'error');
    const open = live && asked && !gone && form.turns.length <= asked.history.length;
    const follows = open && ended && race.followed !== null;
    form.last = follows ? { asked, turn: this.turn() } : null;
    form.changed();
    /** @type {Offer[]} */
    const offers = follows ? ['follow'] : [];
    if (live && ended && race.list.some((lane) => doubt(race, lane)?.load)) offers.push('undrawn');
    this.offer(...offers);
  }

  /** The race as a turn of a conversation. @returns {Turn} */
  turn() {
    const { followed, meta } = this.parts.race;
    if (!followed || !meta.asked) throw new Error('only a race that asked something is a turn');
    const question = this.parts.form.questionOf(meta.asked);
    return { question, answer: followed.answer.trim(), media: meta.asked.media, from: this.from };
  }
}
