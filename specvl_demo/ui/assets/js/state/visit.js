/* What continues from one visit to the next: the form and the race as they were left, and what a
   link requests. Files of an earlier visit are sent again. */

import * as kept from './keep.js';
import * as link from './link.js';
import { W } from '../words/words.js';

const KEPT_MS = 400; // so long the form must stand before it is kept

export class Visit {
  /** page: the whole of it, whose form and race are kept and brought back. */
  constructor(page) {
    this.page = page;
    // Who reloads right after a change finds it again, and who reloads during a race is told.
    addEventListener('pagehide', () => {
      const { running } = page.ask;
      if ((this.keeping || running) && page.ready) this.keep(running);
    });
  }

  /** Keep the form before long: many changes in a row are kept once. */
  remember() {
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => this.keep(), KEPT_MS);
  }

  /** Keep the form and which race stands beside it, for a reload. left: the page is left while a race
   *  runs. */
  keep(left = false) {
    clearTimeout(this.keeping);
    this.keeping = null;
    const { race, ask } = this.page;
    const { example = null, source, form } = race.meta;
    const run = source === 'live' ? race.list[0]?.begin.request : null;
    kept.keepForm({ request: ask.request, example, run, fits: form === ask.key(), left });
  }

  /** {asked, gone}: a request of an earlier visit whose files are on the server again, or sent from this
   *  browser, and the names of those that are not. */
  async revive(request) {
    const { api, catalog } = this.page;
    const lost = [];
    const bring = async (item) => {
      const example = catalog.examples.find((e) => e.id === item.example);
      if (example) return example.media.some((m) => m.path === item.path) ? item : null;
      const file = await kept.file(item.path);
      const sent = file && (await api.upload(file).catch(() => null));
      if (!sent) {
        lost.push(item.name);
        return null;
      }
      kept.keepFile(sent.path, file);
      return { ...item, path: sent.path, url: sent.url };
    };
    const all = async (media) =>
      (await Promise.all((media ?? []).map(bring))).filter((item) => item?.path);
    const history = await Promise.all(
      (request.history ?? []).map(async (turn) => ({ ...turn, media: await all(turn.media) })),
    );
    return {
      asked: { ...request, media: await all(request.media), history },
      gone: lost.join(', '),
    };
  }

  /** The question of a visitor who was quicker than the page. */
  get typed() {
    return this.page.ask.question.value;
  }

  /** The recorded race for a visitor without one: of the page's own pair, which then is loaded already. */
  get first() {
    const { examples, pairs } = this.page.catalog;
    const traced = examples.filter((e) => e.trace);
    const right = traced.filter((e) => !e.fails);
    return right.find((e) => e.pair === pairs[0].id) ?? right[0] ?? traced[0];
  }

  /** Show what a link asks for, what the last visit left, or else the first recorded race. */
  async start() {
    const { page } = this;
    const { ask } = page;
    await page.races.load();
    const view = link.view(Object.keys(W.tabs)) ?? 'race';
    // A visitor may choose a tab before the race is there, which opens its own.
    const settle = () => page.open(page.picked ?? view, Boolean(page.picked));
    const { asked, broken } = link.read();
    const left = kept.form();
    const { first } = this;
    const unknown = asked ? await this.restore(asked) : [];
    // The address of a race that was shared and is looked at again, or one that is to be run.
    const same = ({ meta }) => meta.asked && !meta.branch && ask.key(meta.asked) === ask.key();
    const run = asked && !page.race.list.length && page.races.runs.find(same);
    const now = { asked: structuredClone(ask.request), form: ask.key() };
    if (run) page.show(run.records, { ...run.meta, ...now }, false);
    else if (asked && !page.race.list.length) page.view.tell(W.run.fromLink);
    if (unknown.length) page.view.tell(W.run.unknownLink(unknown), true);
    if (asked) {
      settle();
      return;
    }
    if (left?.request) await this.resume(left);
    else if (first) {
      if (!this.typed) ask.fill(first);
      await page.example(first);
    }
    settle();
    if (broken) page.view.tell(W.run.brokenLink, true);
  }

  /** Continue where the last visit ended: its form, and its race; after one that was `left` while it ran, the last that
   *  is kept. A conversation stands above a race of its own, or above none. */
  async resume({ request, example, run: raced, fits, left }) {
    const { page } = this;
    const { ask, catalog, race } = page;
    const { asked, gone } = await this.revive(request);
    page.chat.set(asked.history);
    ask.restore(this.typed ? { ...asked, question: this.typed } : asked);
    const shown = catalog.examples.find((e) => e.id === example && e.trace) ?? this.first;
    const turn = asked.history.at(-1);
    const told = ({ meta }) => !turn || (meta.asked && ask.inWords(meta.asked) === turn.question);
    // None where another tab's race, or none, is the last that was finished.
    const same = ({ records }) => records[0].request === raced;
    const run = page.races.runs.find(left ? told : same);
    if (run) {
      const own =
        fits && !left
          ? { asked: structuredClone(ask.request), gone }
          : run.meta.asked && (await this.revive(run.meta.asked));
      page.show(run.records, { ...run.meta, ...own, form: left ? undefined : ask.key() }, false);
      if (!fits && !left) race.meta.form = '';
    } else if (turn) {
      race.clear({ source: 'ended', question: ask.inWords(), form: ask.key() });
      page.view.offer('again');
    } else if (shown) {
      await page.example(shown);
      if (left) delete race.meta.form; // it does not stand for what the form asks
    }
    const lost = [left && W.run.left, gone && W.run.gone(gone)].filter(Boolean).join(' ');
    if (lost) page.view.tell(lost, true);
    page.fit();
  }

  /** The settings of a link; its pictures are taken from the examples. Returns the names that are not known here. */
  async restore(asked) {
    const { ask, catalog } = this.page;
    const example = catalog.examples.find((e) => e.id === asked.example);
    const media = example ? ask.of(example).media : [];
    const unknown = ask.restore({ ...asked, media });
    if (asked.example && !example) unknown.push(asked.example);
    // The race of an example as it ships comes with its link.
    if (example?.trace && ask.key(ask.of(example)) === ask.key()) await this.page.example(example);
    return unknown;
  }
}
