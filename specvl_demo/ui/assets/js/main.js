/* The page: header, what goes in, and one view at a time. Wires the parts to the server; the only module that knows all
   of them. `mount` is called once, by the board component. */

import { Ask } from './ask.js';
import { plotly } from './chart.js';
import { CompareView } from './compareview.js';
import { Conversation } from './conversation.js';
import { h } from './dom.js';
import { InspectView } from './inspectview.js';
import { LearnView } from './learnview.js';
import * as link from './link.js';
import { Painter } from './paint.js';
import { Race } from './race.js';
import { RaceView } from './raceview.js';
import { ReplayView } from './replayview.js';
import { Runner } from './runner.js';
import { themeButton } from './theme.js';
import * as trace from './trace.js';
import { W } from './words.js';

const STILL = matchMedia('(prefers-reduced-motion: reduce)');

/** root: the element to fill. api: {server, upload, trigger, watch, url(name)} as the component gives them. */
export async function mount(root, api) {
  // The drawing library is fetched and read now, so that no race has to wait for it; without it, all but charts works.
  const drawing = plotly(api.url('plotly')).catch(() => null);
  const page = new Page(root, api, await api.server.catalog());
  window.specvl = page;
  await Promise.all([page.start(), drawing]);
  page.ready = true;
  return page;
}

class Page {
  constructor(root, api, catalog) {
    Object.assign(this, { root, api, catalog });
    this.painter = new Painter();
    this.race = new Race();
    this.ask = new Ask(catalog, { upload: api.upload, scene: (d) => api.server.scene(d), panel: (d) => api.server.panel(d) });
    this.chat = new Conversation((turn, again) => this.takeUp(turn, again), (turns) => this.ask.setHistory(turns));
    this.ask.conversation(this.chat.node);
    this.view = new RaceView(this.race, this.painter, catalog, api.url('plotly'), {
      save: () => this.save(), link: () => this.link(), follow: () => this.follow(),
    });
    this.inspect = new InspectView(this.race, this.painter, catalog, api.url('plotly'));
    this.replay = new ReplayView(catalog, (records, meta) => this.show(records, meta, true));
    this.runner = new Runner(api);
    this.compare = new CompareView(catalog, this.runner, this.painter, api, () => this.ask.request);
    this.learn = new LearnView(catalog, (id, method) => this.tryOut(id, method));
    this.build();
    this.listen();
  }

  build() {
    this.tabs = Object.entries(W.tabs).map(([name, text]) => h('button', { type: 'button', role: 'tab', id: `vl-tab-${name}`, data: { view: name },
      'aria-controls': `vl-view-${name}`, text, on: { click: () => this.open(name), keydown: (e) => this.tabKey(e) } }));
    this.panels = Object.fromEntries(Object.keys(W.tabs).map((name) => [name,
      h('div', { class: 'vl-panel', role: 'tabpanel', id: `vl-view-${name}`, 'aria-labelledby': `vl-tab-${name}`, hidden: true })]));
    this.panels.race.append(this.view.node);
    this.panels.inspect.append(this.inspect.node);
    this.panels.compare.append(this.compare.node);
    this.panels.replay.append(this.replay.node);
    this.panels.learn.append(this.learn.node);
    const theme = themeButton(() => { this.view.repaint(); this.inspect.repaint(); this.compare.repaint(); });
    this.body = h('div', { class: 'vl-body' }, this.ask.node, h('div', { class: 'vl-main' }, Object.values(this.panels)));
    this.root.replaceChildren(h('div', { class: 'vl' },
      h('header', { class: 'vl-top' },
        h('div', { class: 'vl-brand' }, h('img', { src: this.api.url('logo'), alt: '', width: 24, height: 24 }), h('h1', { text: W.name }), h('p', { text: W.tagline })),
        h('div', { class: 'vl-tabs', role: 'tablist', 'aria-label': W.name }, this.tabs),
        h('span', { class: 'vl-machine', text: this.catalog.machine }), theme),
      this.body));
    this.open('race');
  }

  open(name) {
    for (const tab of this.tabs) {
      const on = tab.dataset.view === name;
      tab.setAttribute('aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
      this.panels[tab.dataset.view].hidden = !on;
    }
    this.body.dataset.view = name; // on a phone the form belongs to the race alone
    if (name === 'compare') this.compare.open();
  }

  tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = this.tabs[(this.tabs.indexOf(event.currentTarget) + step + this.tabs.length) % this.tabs.length];
    next.focus();
    next.click();
  }

  listen() {
    const { ask } = this;
    ask.addEventListener('run', (e) => this.run(e.detail));
    ask.addEventListener('link', () => this.link());
    ask.addEventListener('try', (e) => this.tryOut(e.detail.example, e.detail.method));
    ask.addEventListener('stop', () => this.runner.stop());
    ask.addEventListener('example', (e) => { this.chat.set([]); this.example(e.detail); });
    document.addEventListener('dragover', (e) => { if ([...e.dataTransfer.types].includes('Files')) e.preventDefault(); });
    document.addEventListener('drop', (e) => this.drop(e));
  }

  /** A trace dropped anywhere is opened; anything else is meant for the question. */
  drop(event) {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length || event.defaultPrevented) return;
    event.preventDefault();
    const file = files.find((f) => /\.jsonl?$/.test(f.name));
    if (file) { this.open('replay'); this.replay.open(file); } else this.ask.well.add(files);
  }

  async run(request) {
    this.open('race');
    this.view.player.pause();
    this.ask.setRunning(true);
    this.painter.streaming(true);
    let waiting = true;
    const failed = await this.runner.run(request, {
      status: (text) => this.ask.say(text),
      record: (record) => {
        if (waiting) this.race.clear({ source: 'live', question: request.question, machine: this.catalog.machine });
        if (waiting) this.ask.say('');
        waiting = false;
        this.race.take(record);
      },
      heat: (lanes) => this.heat(lanes),
    });
    this.ask.setRunning(false);
    this.painter.streaming(false);
    if (!waiting) this.replay.keep(this.race);
    this.asked = request;
    const stopped = this.race.list.some((lane) => lane.end?.stop === 'cancelled');
    const ended = stopped ? W.run.stopped : W.run.finished(this.race.list.length);
    this.ask.say(failed ?? (waiting ? W.run.unbegun : ended), failed !== null);
    this.view.offerFollow(!waiting && failed === null);
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

  /** The finished race becomes a part of the conversation; the form waits for the next question. */
  follow() {
    const { question, media } = this.asked;
    const answer = (this.race.baseline ?? this.race.list[0]).text.trim();
    this.chat.add({ question, answer, media });
    this.ask.nextQuestion();
    this.view.offerFollow(false);
  }

  takeUp(turn, again) {
    this.ask.restore({ question: turn.question, media: turn.media });
    if (again) this.ask.run();
    else this.ask.question.focus();
  }

  /** An example with one method beside the plain model, run at once. */
  tryOut(id, method) {
    const example = this.catalog.examples.find((e) => e.id === id);
    this.chat.set([]);
    this.ask.restore({ media: example.media, question: example.question, methods: [method] });
    this.open('race');
    this.ask.run();
  }

  /** Show a recorded race at once; Run then makes it live. */
  async example(example) {
    if (!example.trace || this.ask.running) return;
    try {
      this.show(await trace.fetched(example.trace), { source: 'recorded', question: example.question, machine: example.machine }, true);
    } catch (fault) {
      this.ask.say(fault.message, true);
    }
  }

  /** Put records on the page; `play` runs them at their true speeds. */
  show(records, meta, play) {
    if (this.ask.running) { this.ask.say(W.run.busy, true); return; }
    this.race.clear(meta);
    for (const record of records) this.race.take(record);
    this.view.offerFollow(false);
    this.open('race');
    if (play && !STILL.matches) this.view.player.replay();
  }

  async start() {
    const asked = link.read();
    const first = this.catalog.examples.find((e) => e.trace);
    if (asked) await this.restore(asked);
    else if (first) {
      this.ask.restore(first);
      await this.example(first);
    }
  }

  /** The settings of a link; its pictures are drawn again or taken from the examples. */
  async restore(asked) {
    const scenes = Array.isArray(asked.scenes) ? asked.scenes.slice(0, this.catalog.limits.files) : [];
    const drawn = await Promise.all(scenes.map((scene) => this.api.server.scene(scene)));
    const example = this.catalog.examples.find((e) => e.id === asked.example);
    const media = example ? example.media : drawn.filter((item) => item.path).map((item) => ({ ...item, kind: 'image' }));
    this.ask.restore({ ...asked, media });
  }

  save() { trace.download('race.trace.jsonl', trace.write(trace.recordsOf(this.race))); }

  async link() {
    const address = link.write(this.ask.request);
    history.replaceState(null, '', address);
    const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
    const own = this.ask.request.media.some((item) => item.scene === undefined && !item.example);
    this.ask.say([copied ? W.run.linked : W.run.linkInBar, own && W.run.linkWithout].filter(Boolean).join(' '));
  }
}
