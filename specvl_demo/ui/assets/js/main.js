/* The page: header, what goes in, and one view at a time. Wires the parts to the server; the only module that knows all
   of them. `mount` is called once, by the board component. */

import { Ask } from './ask.js';
import { h, put, icon } from './dom.js';
import { Painter } from './paint.js';
import { Race } from './race.js';
import { RaceView } from './raceview.js';
import { Stream } from './stream.js';
import { themeButton } from './theme.js';
import * as trace from './trace.js';
import { W } from './words.js';

/** root: the element to fill. api: {server, upload, trigger, watch, url(name)} as the component gives them. */
export async function mount(root, api) {
  const page = new Page(root, api, await api.server.catalog());
  window.specvl = page;
  await page.start();
  return page;
}

class Page {
  constructor(root, api, catalog) {
    Object.assign(this, { root, api, catalog });
    this.painter = new Painter();
    this.race = new Race();
    this.runs = [];
    this.ask = new Ask(catalog, { upload: api.upload, scene: (d) => api.server.scene(d), panel: (d) => api.server.panel(d) });
    this.view = new RaceView(this.race, this.painter, catalog, api.url('plotly'), {
      save: () => this.save(), link: () => this.link(),
    });
    this.stream = new Stream(this.handlers(), (run) => api.server.batches(run));
    this.build();
    this.listen();
  }

  build() {
    this.tabs = Object.entries(W.tabs).map(([name, text]) => h('button', { type: 'button', role: 'tab', id: `vl-tab-${name}`,
      'aria-controls': `vl-view-${name}`, 'aria-selected': 'false', tabindex: '-1', text, on: { click: () => this.open(name), keydown: (e) => this.tabKey(e) } }));
    this.panels = Object.fromEntries(Object.keys(W.tabs).map((name) => [name,
      h('div', { class: 'vl-panel', role: 'tabpanel', id: `vl-view-${name}`, 'aria-labelledby': `vl-tab-${name}`, hidden: true })]));
    this.panels.race.append(this.view.node);
    this.machine = h('span', { class: 'vl-machine', text: this.catalog.machine });
    this.root.replaceChildren(h('div', { class: 'vl' },
      h('header', { class: 'vl-top' }, h('div', { class: 'vl-brand' }, h('img', { src: this.api.url('logo'), alt: '', width: 24, height: 24 }), h('h1', { text: W.name }), h('p', { text: W.tagline })),
        h('div', { class: 'vl-tabs', role: 'tablist', 'aria-label': W.name }, this.tabs), this.machine, themeButton(() => this.view.repaint())),
      h('div', { class: 'vl-body' }, this.ask.node, h('main', { class: 'vl-main' }, Object.values(this.panels)))));
    this.open('race');
  }

  open(name) {
    for (const tab of this.tabs) {
      const on = tab.id === `vl-tab-${name}`;
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    for (const [key, panel] of Object.entries(this.panels)) panel.hidden = key !== name;
  }

  tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = this.tabs[(this.tabs.indexOf(event.currentTarget) + step + this.tabs.length) % this.tabs.length];
    next.focus();
    next.click();
  }

  listen() {
    const { ask, api } = this;
    ask.addEventListener('run', (e) => this.run(e.detail));
    ask.addEventListener('stop', () => api.server.stop(this.stream.run));
    ask.addEventListener('example', (e) => this.example(e.detail));
    api.watch((value) => this.stream.feed(value));
  }

  handlers() {
    return {
      run: () => {},
      queue: (e) => this.ask.say(W.run.queue(e.place, e.eta_s)),
      status: (e) => this.ask.say([W.run.stage[e.stage] ?? e.stage, e.detail].filter(Boolean).join(' ')),
      begin: (e) => this.record(e), round: (e) => this.record(e), end: (e) => this.record(e),
      heat: (e) => this.heat(e.lanes),
      error: (e) => { this.failed = true; this.ask.say(e.text, true); },
      done: () => this.done(),
    };
  }

  run(request) {
    this.open('race');
    this.failed = false;
    this.pending = request;
    this.view.player.pause();
    this.ask.setRunning(true);
    this.ask.say(W.run.stage.starting);
    this.api.trigger('run', request);
  }

  record({ k, record }) {
    if (this.pending) {
      this.ask.say('');
      const { question } = this.pending;
      this.race.clear({ source: 'live', question, machine: this.catalog.machine });
      this.pending = null;
    }
    this.race.take({ kind: k, ...record });
  }

  /** Heat of every token comes when all lanes are in; it becomes part of their rounds. */
  heat(lanes) {
    for (const [name, rows] of Object.entries(lanes)) {
      const lane = this.race.lanes.get(name);
      for (const round of lane?.rounds ?? []) {
        const first = lane.at(round.index).tokens;
        round.notes.heat = rows.slice(first, first + round.tokens.length);
      }
    }
    this.race.emit('select');
  }

  done() {
    this.ask.setRunning(false);
    if (this.failed) return;
    this.pending = null;
    this.ask.say(W.run.finished(this.race.list.map((lane) => [lane.begin.title, this.summary(lane)])));
  }

  summary(lane) {
    const t = this.race.now(lane);
    return t.speed ? `${t.speed.toFixed(1)} tok/s` : '';
  }

  /** Show a recorded race at once; Run then makes it live. */
  async example(example) {
    if (!example.trace || this.ask.running) return;
    const text = await (await fetch(example.trace)).text();
    this.show(trace.parse(text), { source: 'recorded', question: example.question, machine: example.machine }, true);
  }

  /** Put records on the page; `play` runs them at their true speeds. */
  show(records, meta, play) {
    this.race.clear(meta);
    for (const record of records) this.race.take(record);
    this.open('race');
    if (play && !matchMedia('(prefers-reduced-motion: reduce)').matches) this.view.player.replay();
  }

  async start() {
    const first = this.catalog.examples.find((e) => e.trace);
    if (first) {
      this.ask.restore({ ...first, media: first.media });
      await this.example(first);
    }
    this.ready = true;
  }

  save() { trace.download('specvl.trace.jsonl', trace.serialize(this.race), 'application/jsonl'); }

  link() {}
}
