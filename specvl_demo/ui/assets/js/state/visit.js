/* What a tab begins with: the form and race as it left them, or what a link asks. */

import * as kept from './keep.js';
import * as link from './link.js';
import { revive } from './revive.js';
import { first } from '../records/trace.js';
import { W } from '../words/words.js';

const KEPT_MS = 400; // of rest before the form is kept

export class Visit {
  /** Until the page is as it was left, nothing is kept. */
  ready = false;
  keeping = 0; // a timer

  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    const { form, race } = parts;
    form.on('change', () => this.remember());
    race.on('lane begin', () => this.enter());
    addEventListener('popstate', () => this.goBack(history.state?.race));
    // A reload right after a change finds it, and one during a race is told of it.
    addEventListener('pagehide', () => {
      if ((this.keeping || form.running) && this.ready) this.keep(form.running);
    });
  }

  /** Soon, once for many changes in a row. */
  remember() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.keep(), KEPT_MS);
  }

  /** Keep the form, and which race stands beside it. left: that race still runs. */
  keep(left = false) {
    const { form, race } = this.parts;
    clearTimeout(this.keeping);
    this.keeping = 0;
    const fits = race.meta.form === form.key();
    kept.form.keep({ request: form.request, race: race.name, fits, left });
  }

  /** Give the race its own entry in the browser's history, in place of one that brings no race back. */
  enter() {
    const { race, stage } = this.parts;
    const { over, race: before } = history.state ?? {};
    const entry = { race: race.name };
    if (before === entry.race) return;
    if (this.ready && !over && stage.wayBack(before)) history.pushState(entry, '', '#race');
    else history.replaceState(entry, '');
  }

  /** Bring back the race of an entry, unless that shows another view; first stop one that runs. @param {string} [name] */
  async goBack(name) {
    const { form, live, race, stage } = this.parts;
    const bring = link.view() === 'race' && name !== race.name && stage.wayBack(name);
    if (!bring) return;
    if (form.running) {
      live.stop();
      await new Promise((ended) => live.addEventListener('ended', ended, { once: true }));
    }
    bring();
  }

  /** The recorded race for a new visitor: of the page's own pair, which is loaded already. */
  get firstExample() {
    const { examples, pairs } = this.parts.catalog;
    const right = examples.filter((e) => !e.fails);
    return right.find((e) => e.pair === pairs[0].id) ?? right[0];
  }

  /** Show what a link asks, what this tab left, or the first recorded race. @param {Tabs} tabs */
  async start(tabs) {
    const { firstExample } = this;
    const { form, stage } = this.parts;
    await this.parts.archive.load();
    const view = link.view();
    const { asked, broken } = link.read();
    const left = kept.form.read();
    const from = link.traceAsked();
    if (from !== null) await this.open(from);
    else if (asked) await this.follow(asked);
    else if (left?.request) await this.resume(left);
    else if (firstExample) {
      if (!form.request.question) form.fill(firstExample); // else it was typed already
      await stage.example(firstExample);
    }
    // The race has opened its own tab, whatever the visitor chose.
    tabs.open(tabs.picked ?? view, Boolean(tabs.picked));
    if (broken) stage.tell(W.run.brokenLink, true);
  }

  /** @param {string} from the address of a trace */
  async open(from) {
    const { archive, catalog, form, stage } = this.parts;
    const example = catalog.examples.find(
      ({ trace }) => new URL(trace, document.baseURI).href === from,
    );
    if (example) {
      form.fill(example);
      await stage.example(example);
      return;
    }
    const found = from ? await fetch(from).catch(() => null) : null;
    const name = from.slice(from.lastIndexOf('/') + 1);
    const problem = found?.ok
      ? await archive.open(new File([await found.text()], name), from)
      : W.trace.elsewhere;
    if (problem) stage.tell(problem, true);
  }

  /** Put what a link asks into the form, and show its race, if there is one. @param {Linked} asked */
  async follow(asked) {
    const { archive, catalog, form, race, stage } = this.parts;
    const example = catalog.examples.find((e) => e.id === asked.example);
    const media = example ? form.of(example).media : [];
    const unknown = form.restore({ ...asked, media, history: [] });
    if (asked.example && !example) unknown.push(asked.example);
    if (example && form.key(form.of(example)) === form.key()) await stage.example(example);
    if (!race.list.length) {
      const run = archive.runs.find(
        ({ meta }) => meta.asked && !meta.branch && form.key(meta.asked) === form.key(),
      );
      if (run) stage.show(run.records, { ...run.meta, ...form.asked }, false);
      else stage.tell(W.run.fromLink(asked.without));
    }
    if (unknown.length) stage.tell(W.run.unknownLink(unknown), true);
  }

  /** Continue where this tab was left; if `left` during a race, with the last kept one. @param {KeptForm} kept */
  async resume({ request, race: raced, fits, left }) {
    const { archive, catalog, form, race, stage } = this.parts;
    const { asked, gone } = await revive(request, this.parts);
    const question = form.request.question || asked.question;
    form.setTurns(asked.history);
    form.restore({ ...asked, question });
    const shown = catalog.examples.find((e) => e.id === raced) ?? this.firstExample;
    const turn = asked.history.at(-1);
    const run = archive.runs.find(({ meta, records }) => {
      if (!left) return first(records).request === raced; // the newest may be another tab's
      return !turn || (meta.asked && form.questionOf(meta.asked) === turn.question);
    });
    if (run) {
      const { meta, records } = run;
      const same = fits && !left;
      const revived = !same && meta.asked && (await revive(meta.asked, this.parts));
      const own = same ? { ...form.asked, gone } : { ...revived, form: left ? undefined : '' };
      stage.show(records, { ...meta, ...own }, false);
    } else if (turn) {
      race.clear({ source: 'ended', question: form.questionOf(), form: form.key() });
    } else if (shown) {
      await stage.example(shown);
      if (left) delete race.meta.form; // it does not stand for what the form asks
    }
    const lost = [left && W.run.left, gone && W.run.gone(gone)].filter(Boolean).join(' ');
    if (lost) stage.tell(lost, true);
    stage.compareWithForm();
  }
}
