/* The page: header, form, and one view at a time. Connects the parts to the server; the only
   module that knows all of them. `mount` is called once, by the board component. */

import { Ask } from './views/ask.js';
import { plotly } from './views/chart.js';
import { CompareView } from './views/compareview.js';
import { keepColours } from './state/colours.js';
import { Conversation } from './views/conversation.js';
import { Drawing, PACES } from './state/drawing.js';
import { wordsOf } from './records/fold.js';
import { download, h } from './views/dom.js';
import { LearnView } from './views/learnview.js';
import * as link from './state/link.js';
import { Painter } from './views/paint.js';
import { Race } from './state/race.js';
import { RaceView } from './views/raceview.js';
import { Races } from './views/races.js';
import { Runner } from './state/runner.js';
import { Story } from './views/story.js';
import { themeButton } from './views/theme.js';
import * as trace from './records/trace.js';
import { doubt } from './records/verdict.js';
import { Visit } from './state/visit.js';
import { W } from './words/words.js';

const STILL = matchMedia('(prefers-reduced-motion: reduce)');
const PATIENT_S = 3; // so long a stage may last before its seconds are counted
const SHORT_S = 6; // a race that took longer was seen while it ran

/** root: the element to fill. api: {server, upload, trigger, watch, url(name)} from the component.
 *  */
export async function mount(root, api) {
  // The drawing library is fetched and read now, so that no race has to wait for it; without it, all but charts works.
  const drawing = plotly(api.url('plotly')).catch(() => null);
  const page = new Page(root, api, await api.server.read_catalog());
  window.specvl = page;
  await Promise.all([page.visit.start(), drawing]);
  page.ready = true;
  return page;
}

class Page {
  constructor(root, api, catalog) {
    this.root = root;
    this.api = api;
    this.catalog = catalog;
    keepColours(catalog);
    this.ready = false;
    this.painter = new Painter();
    this.drawing = new Drawing(() => api.server.computing_time());
    this.race = new Race(catalog.rules);
    this.races = new Races(
      (records, meta) => this.again(records, meta),
      (file) => this.compared(file),
    );
    const calls = { upload: api.upload, panel: (d) => api.server.method_panel(d) };
    this.ask = new Ask(catalog, calls, this.races.node);
    this.chat = new Conversation(
      (turn, again) => this.takeUp(turn, again),
      (turns) => this.ask.setHistory(turns),
      () => this.anew(),
    );
    this.story = new Story(this.race, () => this.view.player.finish());
    const on = {
      save: (as) => this.save(as),
      follow: () => this.follow(),
      again: () => this.ask.run(),
      undrawn: () => this.ask.run({ undrawn: true }),
      back: () => this.back(),
    };
    this.race.on('branch', (taken) => this.branch(taken));
    const explain = this.story.button();
    this.view = new RaceView(this.race, this.painter, catalog, api.url('plotly'), on, explain);
    this.runner = new Runner(api);
    this.compare = new CompareView(catalog, this.runner, this.painter, api, () => this.ask.request);
    this.learn = new LearnView(catalog, this.painter, api.url('plotly'), (example) => {
      this.ask.choose(example);
      this.open('race');
    });
    this.visit = new Visit(this);
    this.build();
    this.listen();
  }

  build() {
    this.tabs = Object.entries(W.tabs).map(([name, text]) =>
      h('button', {
        role: 'tab',
        id: `vl-tab-${name}`,
        data: { view: name },
        'aria-controls': `vl-view-${name}`,
        text,
        on: { click: () => this.pick(name), keydown: (e) => this.tabKey(e) },
      }),
    );
    this.panels = Object.fromEntries(
      Object.keys(W.tabs).map((name) => [
        name,
        h('div.vl-panel', {
          role: 'tabpanel',
          id: `vl-view-${name}`,
          'aria-labelledby': `vl-tab-${name}`,
          hidden: true,
        }),
      ]),
    );
    this.panels.race.append(this.chat.node, this.view.node);
    this.panels.compare.append(this.compare.node);
    this.panels.learn.append(this.learn.node);
    const theme = themeButton(() => {
      this.view.repaint();
      this.compare.repaint();
      this.learn.repaint();
    });
    this.body = h('div.vl-body', this.ask.node, h('div.vl-main', Object.values(this.panels)));
    this.root.replaceChildren(
      h(
        'div.vl',
        h(
          'header.vl-top',
          h(
            'div.vl-brand',
            h('img', { src: this.api.url('logo'), alt: '', width: 24, height: 24 }),
            h('h1', W.name),
            h('p', W.tagline, h('span', W.watched)),
          ),
          h('div.vl-tabs', { role: 'tablist', 'aria-label': W.name }, this.tabs),
          h('span.vl-machine', this.catalog.machine),
          theme,
        ),
        this.body,
        this.story.node,
      ),
    );
    this.open(link.view(Object.keys(W.tabs)) ?? 'race', false);
  }

  /** Show a view; it gets its own address, so that Back works, unless it comes from one, or the page
   *  only begins. */
  open(name, fresh = this.ready) {
    if (fresh && this.body.dataset.view !== name) history.pushState(null, '', `#${name}`);
    for (const tab of this.tabs) {
      const on = tab.dataset.view === name;
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
      this.panels[tab.dataset.view].hidden = !on;
    }
    if (fresh && this.body.dataset.view !== name) scrollTo(0, 0);
    this.body.dataset.view = name; // on a phone the form belongs to the race alone
    if (name === 'compare') this.compare.open();
  }

  /** Show the view of a tab that a visitor chose. */
  pick(name) {
    this.picked = name;
    this.open(name);
  }

  tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = this.tabs.at((this.tabs.indexOf(event.currentTarget) + step) % this.tabs.length);
    next.focus();
    next.click();
  }

  listen() {
    const { ask } = this;
    ask.addEventListener('run', (e) => this.run(e.detail));
    ask.addEventListener('turn', (e) => this.chat.set(e.detail));
    ask.addEventListener('fresh', () => this.anew());
    ask.addEventListener('stop', () => {
      this.runner.stop();
      ask.say(W.run.stopping);
      this.view.await(W.run.stopping);
    });
    ask.addEventListener('example', (e) => {
      this.chat.set([]);
      this.example(e.detail);
    });
    ask.addEventListener('change', () => {
      this.fit();
      this.visit.remember();
    });
    ask.addEventListener('settled', () => this.view.tell(''));
    ask.addEventListener('say', (e) => {
      if (e.detail.wrong) this.view.tell(e.detail.text, true);
    });
    window.addEventListener('popstate', () =>
      this.open(link.view(Object.keys(W.tabs)) ?? 'race', false),
    );
    document.addEventListener('dragover', (e) => {
      if ([...e.dataTransfer.types].includes('Files')) e.preventDefault();
    });
    document.addEventListener('drop', (e) => this.drop(e));
  }

  /** In Compare, what is dropped is compared on; elsewhere a trace is opened, and anything else is meant for the
   *  question. */
  drop(event) {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length || event.defaultPrevented) return;
    event.preventDefault();
    const file = files.find((f) => /\.jsonl?$/.test(f.name));
    if (this.body.dataset.view === 'compare') this.compare.take(event);
    else if (file) {
      this.open('race');
      this.races.open(file);
    } else this.ask.well.add(files);
  }

  /** Whether the race on the page is still the one that the form requests; shown if it is not. */
  fit() {
    const { form, asked } = this.race.meta;
    const { ask } = this;
    const other = form !== undefined && form !== ask.key();
    const outdated = !ask.running && other && ask.next === 'same';
    this.view.outdated(outdated, outdated && asked ? ask.changedSince(asked) : []);
    ask.scopeNote.hidden = !other && ask.scope === this.race.meta.scope; // it stands above the answers
  }

  async run({ branch, without, undrawn, before: form, ...request }) {
    this.coming = null;
    this.open('race');
    this.view.toTop();
    this.ask.setRunning(true);
    const { methods, limits, machine } = this.catalog;
    const lanes = ['ar', ...request.methods].map((name) => methods.find((m) => m.name === name));
    const pictures = request.media
      .filter((item) => item.kind === 'image')
      .map(({ name, url }) => ({ name, frames: [url] }));
    this.ask.last = null;
    const before = [this.race.meta, trace.recordsOf(this.race)];
    this.race.clear({
      source: 'live',
      question: this.ask.inWords(request),
      machine,
      form: this.ask.key(),
      asked: structuredClone(this.ask.request),
      shown: pictures,
      scope: this.ask.scope,
      branch,
    });
    this.race.expect(lanes, request.max_new_tokens ?? limits.tokens);
    const pace = undrawn ? 'undrawn' : this.drawing.name;
    this.compute(pace);
    if (without.length) this.view.tell(W.ask.greedy(without), true);
    this.fit();
    let begun = false;
    let [stage, since] = ['', Date.now()];
    const say = (text) => this.runner.stopping || this.ask.say(text); // that it stops stays said
    const waited = setInterval(() => {
      const seconds = Math.round((Date.now() - since) / 1000);
      if (stage.endsWith('…') && seconds >= PATIENT_S) say(W.run.waited(stage, seconds));
    }, 1000);
    const failed = await this.runner.run(
      { ...request, hz: PACES[pace].hz },
      {
        status: (text) => {
          [stage, since] = [text, Date.now()];
          say(text);
          this.view.await(pace === 'undrawn' && !text ? W.run.undrawn : text);
        },
        record: (record) => {
          if (!begun) say(pace === 'undrawn' ? W.run.undrawn : '');
          if (record.kind === 'begin') this.ask.loading.echo(record);
          begun = true;
          stage = '';
          this.race.take(record);
        },
      },
    );
    clearInterval(waited);
    this.ask.setRunning(false);
    this.compute(null);
    this.view.await('');
    const nothing = this.race.list.every((lane) => !lane.tokens.length);
    if (nothing && failed !== null) this.ask.undo(form);
    if (nothing && failed !== null && before[1].length) this.bringBack(...before);
    else if (nothing)
      this.race.clear({
        source: 'ended',
        question: this.ask.inWords(request),
        form: this.race.meta.form,
      });
    else this.races.keep(this.race);
    this.visit.keep();
    const stopped = this.race.list.some((lane) => lane.end?.stop === 'cancelled');
    const ended = stopped
      ? [W.run.stopped, this.from && W.chat.goesOn(this.from)].filter(Boolean).join(' ')
      : W.run.finished(this.race.list.length);
    this.fit();
    this.ask.say(failed ?? (nothing ? '' : ended), failed !== null);
    if (nothing && failed === null) {
      this.view.tell(W.run.unbegun);
      this.view.offer('again');
    } else this.offerFollow();
    if (nothing || failed !== null || stopped) return;
    this.afterwards(pace);
    if (document.activeElement === this.ask.question) this.ask.question.select(); // the next one replaces it
  }

  /** The race that was on the page before one that never began. */
  bringBack(meta, records) {
    this.race.clear(meta);
    for (const record of records) this.race.take(record);
    this.offerFollow();
  }

  /** Lanes begin to compute and are drawn at a pace; null: they are done. */
  compute(pace) {
    this.root.firstChild.classList.toggle('frugal', pace !== null && pace !== 'full');
    this.view.undrawn = pace === 'undrawn';
    this.painter.computing(pace && PACES[pace]);
  }

  /** A race that was hardly drawn while it ran is played back from its record. */
  afterwards(pace) {
    const { race } = this;
    this.compare.learn(race);
    this.drawing.learn(pace, Math.max(0, ...race.list.map((lane) => lane.end.watching ?? 0)));
    const unseen = pace === 'undrawn' || (pace !== 'full' && race.length < SHORT_S);
    if (unseen && !STILL.matches) this.view.player.replay();
    else this.view.point();
  }

  /** For a stopped race, the title of the lane whose text a follow-up continues; null if AR's is
   *  complete. */
  get from() {
    const { followed, baseline } = this.race;
    return followed && ((baseline && followed !== baseline) || followed.end.stop === 'cancelled')
      ? followed.title
      : null;
  }

  /** A visitor's own race that ended without a fault can be followed by a question, once, while its
   *  pictures are on the server; one that was disturbed can be measured without drawing it. */
  offerFollow() {
    const { race, chat } = this;
    const { source, asked, gone } = race.meta;
    const ended = race.list.every((lane) => lane.end && lane.end.stop !== 'error');
    const open = source === 'live' && asked && !gone && chat.turns.length <= asked.history.length;
    const follows = open && ended && race.followed;
    this.ask.last = follows ? { asked, turn: this.turn() } : null;
    this.ask.changed();
    const own = source === 'live' && ended && race.list.length > 0;
    this.view.offer(
      ...[
        follows && 'follow',
        own && race.list.some((lane) => doubt(race, lane)?.load) && 'undrawn',
      ].filter(Boolean),
    );
  }

  /** The race as a turn of its conversation. */
  turn() {
    const { asked } = this.race.meta;
    const answer = this.race.followed.answer.trim();
    return { question: this.ask.inWords(asked), answer, media: asked.media, from: this.from };
  }

  /** Continue from another candidate than the token that a lane wrote at a position, next to what
   *  it had written. */
  branch({ lane, index, id, text }) {
    const { race, ask } = this;
    if (ask.running) {
      ask.say(W.run.busy, true);
      return;
    }
    const { asked } = race.meta;
    const { tokens, given } = lane;
    const words = (...part) => wordsOf(tokens.slice(...part));
    const methods = lane === race.baseline ? asked.methods : [lane.begin.method];
    const of = race.meta.branch?.of ?? race.meta.example ?? race.list[0].begin.request;
    const left = { lane: lane.title, chosen: tokens[index].text, taken: text };
    const branch = { ...left, of, before: given.text + words(0, index), after: words(index + 1) };
    this.chat.set(asked.history);
    ask.restore({ ...asked, methods });
    ask.run({
      prefix: [...given.ids, ...tokens.slice(0, index).map((token) => token.id), id],
      branch,
    });
  }

  /** The race from which branches were taken, as it was. */
  back() {
    const { of } = this.race.meta.branch;
    const run = this.races.runs.find(
      ({ records, meta }) => records[0].request === of && !meta.branch,
    );
    const example = this.catalog.examples.find(({ id }) => id === of);
    if (example) this.ask.choose(example);
    else if (run) this.bringOut(run.records, run.meta, false);
    else this.ask.say(W.branch.lost, true);
  }

  /** The next question includes nothing of the conversation so far but its last pictures. One that is in the form
   *  already stays. */
  anew() {
    const { ask, chat } = this;
    const question = ask.next === 'on' ? ask.request.question : '';
    const pictures = [...chat.turns, ask.request].map(({ media }) => media);
    ask.last = null;
    chat.set([]);
    ask.nextQuestion({ question, media: pictures.findLast((media) => media.length) });
    this.view.offer();
  }

  /** The race becomes part of the conversation in which it was asked; the form awaits the next
   *  question, or has it already. */
  follow() {
    this.ask.keepOn.checked = true;
    const typed = this.ask.next === 'on';
    if (typed) this.ask.turnOver();
    this.ask.keepOn.checked = false;
    this.ask.last = null;
    this.chat.set([...this.race.meta.asked.history, this.turn()]);
    if (typed) this.ask.question.focus();
    else this.ask.nextQuestion();
    this.view.offer();
  }

  takeUp(turn, again) {
    this.ask.last = null;
    this.ask.restore({ question: turn.question, media: turn.media });
    if (again) this.ask.run();
    else this.ask.question.focus();
  }

  /** The recorded race of an example, at once; Run then makes it live. */
  async example(example) {
    if (this.ask.running) return;
    this.coming = example;
    const meta = {
      source: 'recorded',
      example: example.id,
      price: example.price,
      scope: example.fails ?? '',
      question: example.question,
      machine: example.machine,
      recorded: example.recorded,
      compared: example.compared,
      form: this.ask.key(this.ask.of(example)),
      asked: this.ask.of(example),
    };
    try {
      if (example.trace) {
        const records = await trace.fetched(example.trace);
        // What a visitor types or picks meanwhile stays.
        if (this.coming === example) this.show(records, meta, true);
      } else {
        this.race.clear({ question: example.question });
        this.view.idle(example.title);
        this.open('race');
      }
    } catch (fault) {
      this.race.clear({ question: example.question });
      this.ask.say(fault.message, true);
    }
  }

  /** Put records on the page; `play` shows how they were made. The form stays. */
  show(records, meta, play) {
    if (this.ask.running) {
      this.ask.say(W.run.busy, true);
      return;
    }
    this.coming = null;
    this.ask.last = null;
    this.race.clear(meta);
    for (const record of records) this.race.take(record);
    this.offerFollow();
    this.open('race');
    this.ask.say('');
    this.fit();
    if (meta.gone) this.view.tell(W.run.gone(meta.gone), true);
    if (meta.file) this.view.tell(W.run.fromFile(meta.file));
    if (play && !STILL.matches) {
      const { drawing, view } = this;
      view.player.replay();
      if (drawing.share === undefined) drawing.measure(() => view.player.playing).catch(() => null);
    } else this.view.point();
  }

  /** How the lanes of a trace compare, if the server finds it sound; else {problem}. */
  async compared(file) {
    const { upload, server } = this.api;
    const sent = await upload(file).catch(() => null);
    const told = sent && (await server.compare_trace(sent.path).catch(() => null));
    return told ?? { problem: await this.runner.reason(W.trace.notRead) };
  }

  /** Put records on the page, and their request, if it is known, into the form. */
  bringOut(records, meta, play) {
    const { asked } = meta;
    if (asked && !this.ask.running) {
      this.chat.set(asked.history);
      this.ask.restore(asked);
    }
    this.show(records, asked ? { ...meta, form: this.ask.key() } : meta, play);
  }

  /** A kept race again, with the form as it was; files of an earlier visit are sent once more. */
  async again(records, meta) {
    const revived = !this.ask.running && meta.asked && (await this.visit.revive(meta.asked));
    this.bringOut(records, { ...meta, ...revived }, true);
  }

  /** The race as something to keep: a 'link' to its settings, its 'trace', or one file that opens in any browser, made
   *  by the server from the trace: a 'page' with its charts, or a 'figure'. */
  async save(as) {
    if (as === 'link') {
      await this.link();
      return;
    }
    const written = trace.write(trace.recordsOf(this.race));
    if (as === 'trace') {
      download('race.trace.jsonl', written);
      return;
    }
    const { api } = this;
    this.view.tell(W.run.sharing);
    const sent = await api.upload(new File([written], 'race.trace.jsonl')).catch(() => null);
    const earlier = (this.race.meta.asked?.history ?? []).map(({ question, answer }) => ({
      question,
      answer,
    }));
    const asked = { path: sent?.path, as, earlier };
    const made = sent ? await api.server.export_race(asked).catch(() => null) : null;
    const file = made?.url && (await fetch(new URL(made.url, document.baseURI)).catch(() => null));
    if (!file?.ok) {
      this.view.tell(made?.problem ?? (await this.runner.reason(W.run.notShared)), true);
      return;
    }
    const [name, type] = {
      page: ['race.html', 'text/html'],
      figure: ['race.svg', 'image/svg+xml'],
    }[as];
    download(name, await file.blob(), type);
    this.view.tell(W.run.shared(name));
  }

  async link() {
    const address = link.write(this.ask.request);
    history.replaceState(null, '', address);
    const copied = await navigator.clipboard?.writeText(address).then(
      () => true,
      () => false,
    );
    const { media, history: turns } = this.ask.request;
    const told = [
      copied ? W.run.linked : W.run.linkInBar,
      media.some((item) => !item.example) && W.run.linkWithout,
      turns.length > 0 && W.run.linkAlone,
    ];
    this.view.tell(told.filter(Boolean).join(' '));
  }
}
