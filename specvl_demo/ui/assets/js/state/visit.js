/* What continues from one visit to the next: the form and the race as they were left, and what a link requests. */

import * as kept from './keep.js';
import * as link from './link.js';
import { revive } from './revive.js';
import { first } from '../records/trace.js';
import { W } from '../words/words.js';

/** @import { KeptRace, Parts, Request } from './types.js' */

const KEPT_MS = 400; // how long the form must stand before it is kept
const VIEWS = Object.keys(W.tabs);

/** What a link asks. example: the id of the example whose pictures it means; without: it was of others.
 *  @typedef {Partial<Request> & { example?: string, without?: boolean }} Linked */

/** A form as it was left. run: the request of the race beside it, which it `fits`; left: that race still ran.
 *  @typedef {{ request: Request, example: string | null, run: string | null, fits: boolean, left: boolean }} KeptForm */

/** The view that is open. picked: the one that the visitor chose.
 *  @typedef {{ picked: string | null, open: (name: string, fresh: boolean) => void }} Tabs */

/** Keeps the form, and begins a visit where the last one ended or where a link leads. */
export class Visit {
  /** Until all is as it was left, nothing is kept. */
  ready = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  keeping;

  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    const { form } = parts;
    form.on('change', () => this.remember());
    // A reload right after a change finds it again, and one during a race is told of it.
    addEventListener('pagehide', () => {
      if ((this.keeping || form.running) && this.ready) this.keep(form.running);
    });
  }

  /** Keep the form soon: many changes in a row are kept once. */
  remember() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.keep(), KEPT_MS);
  }

  /** Keep the form, and which race stands beside it. left: that race still runs. */
  keep(left = false) {
    const { form, race } = this.parts;
    clearTimeout(this.keeping);
    this.keeping = undefined;
    const { example = null, source, form: key } = race.meta;
    const run = source === 'live' ? race.list[0]?.begin.request : null;
    kept.keepForm({ request: form.request, example, run, fits: key === form.key(), left });
  }

  /** The recorded race for a visitor without one: of the page's own pair, which then is loaded already. */
  get firstExample() {
    const { examples, pairs } = this.parts.catalog;
    const traced = examples.filter((e) => e.trace);
    const right = traced.filter((e) => !e.fails);
    return right.find((e) => e.pair === pairs[0].id) ?? right[0] ?? traced[0];
  }

  /** Show what a link asks for, what the last visit left, or else the first recorded race.
   *  @param {Tabs} tabs */
  async start(tabs) {
    const { firstExample } = this;
    const { form, stage } = this.parts;
    await this.parts.archive.load();
    const view = link.view(VIEWS) ?? 'race';
    const { asked, broken } = link.read();
    const left = kept.form();
    const from = link.traceAsked();
    if (from !== null) await this.open(from);
    else if (asked) await this.follow(asked);
    else if (left?.request) await this.resume(left);
    else if (firstExample) {
      if (!form.request.question) form.fill(firstExample); // else it was typed before the page was ready
      await stage.example(firstExample);
    }
    // A visitor may choose a tab before the race is there, which opens its own.
    tabs.open(tabs.picked ?? view, Boolean(tabs.picked));
    if (!asked && broken) stage.tell(W.run.brokenLink, true);
  }

  /** Open the race of this trace address. @param {string} from */
  async open(from) {
    const { archive, catalog, form, stage } = this.parts;
    /** An address in full. @param {string} path */
    const whole = (path) => new URL(path, document.baseURI).href;
    const example = catalog.examples.find(({ trace }) => trace && whole(trace) === from);
    if (example) {
      form.fill(example);
      await stage.example(example);
      return;
    }
    const found = from && (await fetch(from).catch(() => null));
    const name = from.slice(from.lastIndexOf('/') + 1);
    const problem =
      found && found.ok
        ? await archive.open(new File([await found.text()], name), from)
        : W.trace.elsewhere;
    if (problem) stage.tell(problem, true);
  }

  /** Put what a link asks into the form, and show the race that it was made of, if this browser or
   *  an example has it. @param {Linked} asked */
  async follow(asked) {
    const { archive, form, race, stage } = this.parts;
    const unknown = await this.restore(asked);
    /** Whether a kept race answers what is asked. @param {KeptRace} run */
    const same = ({ meta }) => meta.asked && !meta.branch && form.key(meta.asked) === form.key();
    const run = race.list.length ? undefined : archive.runs.find(same);
    if (run) stage.show(run.records, { ...run.meta, ...form.asked }, false);
    else if (!race.list.length) stage.tell(W.run.fromLink(asked.without));
    if (unknown.length) stage.tell(W.run.unknownLink(unknown), true);
  }

  /** Continue where the last visit ended: its form and its race; after one that was `left` while it ran, the last
   *  that is kept. @param {KeptForm} kept */
  async resume({ request, example, run: raced, fits, left }) {
    const { archive, catalog, form, race, stage } = this.parts;
    const { asked, gone } = await revive(request, this.parts);
    const question = form.request.question || asked.question;
    form.setTurns(asked.history);
    form.restore({ ...asked, question });
    const shown = catalog.examples.find((e) => e.id === example && e.trace) ?? this.firstExample;
    const turn = asked.history.at(-1);
    /** Whether a kept race answers the last question. @param {KeptRace} run */
    const answered = ({ meta }) =>
      !turn || (meta.asked && form.questionOf(meta.asked) === turn.question);
    /** Whether a kept race is the one beside the form: none is where another tab's race, or none,
     *  is the last that was finished. @param {KeptRace} run */
    const same = ({ records }) => first(records).request === raced;
    const run = archive.runs.find(left ? answered : same);
    if (run) await this.bringOut(run, fits && !left, gone, left);
    else if (turn) {
      race.clear({ source: 'ended', question: form.questionOf(), form: form.key() });
      stage.offer('again');
    } else if (shown) {
      await stage.example(shown);
      if (left) delete race.meta.form; // it does not stand for what the form asks
    }
    const lost = [left && W.run.left, gone && W.run.gone(gone)].filter(Boolean).join(' ');
    if (lost) stage.tell(lost, true);
    stage.compareWithForm();
  }

  /** Show a kept race beside the form, which it may `fit`. gone: names of lost files; left: another one ran then.
   *  @param {KeptRace} run @param {boolean} fits @param {string} gone @param {boolean} left */
  async bringOut({ records, meta }, fits, gone, left) {
    const { form, stage } = this.parts;
    const own = fits
      ? { asked: structuredClone(form.request), gone }
      : meta.asked && (await revive(meta.asked, this.parts));
    stage.show(records, { ...meta, ...own, form: left ? undefined : form.key() }, false);
    if (!fits && !left) this.parts.race.meta.form = '';
  }

  /** Put what a link asks into the form. Returns the names that are not known here.
   *  @param {Linked} asked */
  async restore(asked) {
    const { form, catalog } = this.parts;
    const example = catalog.examples.find((e) => e.id === asked.example);
    const media = example ? form.of(example).media : [];
    const unknown = form.restore({ ...asked, media, history: [] });
    if (asked.example && !example) unknown.push(asked.example);
    // The race of an example as it ships comes with its link.
    if (example?.trace && form.key(form.of(example)) === form.key())
      await this.parts.stage.example(example);
    return unknown;
  }
}
