/* What goes in: pictures or a clip, the question, pair, methods and their parameters, sampling. One plain object holds
   the request; every control reads and writes it. Given the catalog and what to do on Run and Stop. */

import { h, put, icon } from './dom.js';
import { MediaWell } from './media.js';
import { MethodPanel, tries } from './methodpanel.js';
import { Fields, Panel, field } from './settings.js';
import { W } from './words.js';

export const MOST_LANES = 4;

/** Length and sampling, declared like a method's parameters. */
const sampling = (limits) => [
  { key: 'max_new_tokens', kind: 'int', default: 160, min: 1, max: limits.tokens, title: W.ask.maxTokens, help: W.ask.maxTokensHelp },
  { key: 'temperature', kind: 'float', default: 0, min: 0, max: 2, title: W.ask.temperature, help: W.ask.temperatureHelp },
  { key: 'top_p', kind: 'float', default: 1, min: 0.05, max: 1, title: W.ask.topP, help: W.ask.topPHelp },
  { key: 'seed', kind: 'int', default: 0, min: 0, max: 2 ** 31 - 1, title: W.ask.seed, help: W.ask.seedHelp },
];

/** The request as it stands before anybody touched it. */
export function blank(catalog) {
  const pair = catalog.pairs.find((p) => p.available) ?? catalog.pairs[0];
  return {
    pair: pair.id, media: [], question: '', system: '', methods: [...catalog.defaults.methods], settings: {}, sampling: {}, history: [],
  };
}

export class Ask extends EventTarget {
  constructor(catalog, api) {
    super();
    this.catalog = catalog;
    this.api = api;
    this.request = blank(catalog);
    this.running = false;
    this.build();
    this.show();
  }

  build() {
    const { catalog, api } = this;
    this.well = new MediaWell(catalog, api, (media) => { this.request.media = media; this.changed(); });
    this.question = h('textarea', { id: 'vl-question', rows: '2', maxlength: catalog.limits.question,
      placeholder: W.ask.questionHint, on: {
        input: () => { this.request.question = this.question.value; this.changed(); },
        keydown: (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) this.run(); },
      } });
    this.questionLabel = h('label', { for: 'vl-question', text: W.ask.question });
    this.before = h('div', { class: 'vl-before' });
    this.examples = h('div', { class: 'vl-examples', role: 'group', 'aria-label': W.ask.examples },
      catalog.examples.map((example) => this.tile(example)));
    this.pair = h('select', { id: 'vl-pair', on: { change: () => { this.request.pair = this.pair.value; this.show(); this.changed(); } } },
      catalog.pairs.map((p) => h('option', { value: p.id, text: p.available ? p.title : W.ask.unavailable(p.title), disabled: !p.available })));
    this.pairNote = h('p', { class: 'vl-help' });
    this.methods = h('div', { class: 'vl-methods', role: 'group', 'aria-labelledby': 'vl-methods-title' },
      catalog.methods.filter((m) => m.name !== 'ar').map((m) => this.chip(m)));
    this.settings = h('div', { class: 'vl-settings' });
    this.sampling = new Panel(W.ask.sampling, () => this.resetSampling());
    this.system = h('textarea', { id: 'vl-system', rows: '2', maxlength: catalog.limits.question,
      on: { input: () => { this.request.system = this.system.value; this.changed(); } } });
    this.showSampling();
    this.go = h('button', { type: 'submit', class: 'vl-primary', id: 'vl-run' }, icon('play'), h('span', { text: W.ask.run }));
    this.halt = h('button', { type: 'button', class: 'vl-secondary', id: 'vl-stop', disabled: true,
      on: { click: () => this.dispatchEvent(new Event('stop')) } }, icon('stop'), W.ask.stop);
    this.more = h('button', { type: 'button', class: 'vl-small vl-more', 'aria-expanded': 'false', on: { click: () => {
      this.more.setAttribute('aria-expanded', String(this.node.classList.toggle('open')));
    } } }, W.ask.more, icon('chevron', 13));
    this.waiting = h('progress', { class: 'vl-waiting', hidden: true, 'aria-label': W.ask.waiting });
    this.status = h('p', { class: 'vl-status', role: 'status', id: 'vl-status' });
    this.node = h('form', { class: 'vl-ask', 'aria-label': W.ask.title, on: { submit: (e) => { e.preventDefault(); this.run(); } } },
      h('div', { class: 'vl-ask-scroll' },
        catalog.examples.length > 0 && section(W.ask.examples, this.examples), this.more,
        h('div', { class: 'vl-ask-rest' }, this.before, this.well.node,
          h('div', { class: 'vl-field' }, this.questionLabel, this.question),
          h('div', { class: 'vl-field' }, h('label', { for: 'vl-pair', text: W.ask.pair }), this.pair, this.pairNote),
          h('div', { class: 'vl-field' }, h('span', { class: 'vl-label', id: 'vl-methods-title', text: W.ask.methods(MOST_LANES) }), this.methods),
          this.settings, this.sampling.node)),
      h('div', { class: 'vl-ask-foot' }, this.waiting, this.status, h('div', { class: 'vl-buttons' }, this.go, this.halt)));
  }

  /** Earlier turns stand above the question. */
  conversation(node) { this.before.replaceChildren(node); }

  setHistory(turns) {
    this.request.history = turns;
    put(this.questionLabel, turns.length ? W.chat.question : W.ask.question);
    this.changed();
  }

  /** Make room for the next question of the conversation. */
  nextQuestion() {
    Object.assign(this.request, { question: '', media: [] });
    this.show();
    this.question.focus();
  }

  tile(example) {
    return h('button', { type: 'button', class: 'vl-tile', title: example.why, data: { example: example.id },
      on: { click: () => this.choose(example) } },
    h('span', { class: 'vl-tile-media' }, example.thumbs.length
      ? example.thumbs.slice(0, 2).map((src) => h('img', { src, alt: '', loading: 'lazy' }))
      : example.media.map((m) => h('video', { src: m.url, muted: true, playsinline: true, preload: 'metadata' }))),
    h('span', { text: example.title }));
  }

  chip(method) {
    const box = h('input', { type: 'checkbox', value: method.name, on: { change: () => this.toggle(method.name, box.checked) } });
    return h('label', { class: `vl-method${method.lossless ? '' : ' lossy'}`, title: method.help, data: { method: method.name } },
      box, h('i', { class: 'vl-swatch' }), h('span', { text: method.title }),
      !method.lossless && h('span', { class: 'vl-mark', title: W.lane.lossyHelp, 'aria-label': W.lane.lossy, text: '≈' }));
  }

  toggle(name, on) {
    const kept = this.request.methods.filter((m) => m !== name);
    this.request.methods = on ? [...kept, name].slice(-MOST_LANES) : kept;
    this.show();
    this.changed();
  }

  /** Fill the form from an example; the page may play its recorded race at once. */
  choose(example) {
    Object.assign(this.request, { media: example.media.map((m) => ({ ...m, example: example.id })), question: example.question,
      methods: [...example.methods] }, example.request ?? {});
    this.show();
    this.changed();
    this.dispatchEvent(new CustomEvent('example', { detail: example }));
  }

  /** Take over a whole request, from a link say; unknown names are dropped. */
  restore(request) {
    const known = blank(this.catalog);
    for (const key of Object.keys(known)) if (typeof request[key] === typeof known[key]) this.request[key] = request[key];
    const names = new Set(this.catalog.methods.map((m) => m.name));
    this.request.methods = [...this.request.methods].filter((m) => names.has(m) && m !== 'ar').slice(0, MOST_LANES);
    if (!this.catalog.pairs.some((p) => p.id === this.request.pair)) this.request.pair = known.pair;
    this.show();
    this.changed();
  }

  /** Bring every control in line with the request. */
  show() {
    const { request, catalog } = this;
    this.well.show(request.media);
    if (this.question.value !== request.question) this.question.value = request.question;
    this.pair.value = request.pair;
    const pair = catalog.pairs.find((p) => p.id === request.pair);
    put(this.pairNote, pair.available ? pair.help : pair.reason);
    this.well.scenes(Boolean(pair.scenes));
    for (const chip of this.methods.children) {
      const name = chip.dataset.method;
      const reason = pair.methods[name];
      const at = request.methods.indexOf(name);
      const box = chip.querySelector('input');
      box.checked = at >= 0;
      box.disabled = typeof reason === 'string';
      chip.classList.toggle('off', box.disabled);
      chip.title = box.disabled ? reason : catalog.methods.find((m) => m.name === name).help;
      if (at >= 0) chip.dataset.lane = at + 1;
      else delete chip.dataset.lane;
    }
    this.system.value = request.system;
    this.showSampling();
    this.panels();
  }

  showSampling() {
    const fields = new Fields(sampling(this.catalog.limits), this.request.sampling, () => { this.sampling.tally(fields.changed); this.changed(); });
    this.sampling.fill(fields.node, field('vl-system', W.ask.system, this.system, W.ask.systemHelp));
    this.sampling.tally(fields.changed);
  }

  resetSampling() {
    this.request.sampling = {};
    this.request.system = '';
    this.show();
    this.changed();
  }

  /** One panel of parameters for every chosen method; panels that stay keep their state. */
  panels() {
    const old = new Map([...this.settings.children].map((node) => [node.dataset.key, node]));
    this.settings.replaceChildren(...this.request.methods.map((name) => {
      const values = (this.request.settings[name] ??= {});
      const key = `${this.request.pair}/${name}`;
      if (old.get(key)?.values === values) return old.get(key);
      const method = this.catalog.methods.find((m) => m.name === name);
      const panel = new MethodPanel(method, this.request.pair, values,
        { ask: this.api.panel, change: () => this.changed(), link: () => this.dispatchEvent(new Event('link')) }, this.tries(method));
      panel.node.dataset.key = key;
      panel.node.values = values;
      return panel.node;
    }));
  }

  /** The examples that show a method at its best and at its worst, folded away. */
  tries(method) {
    const found = tries(this.catalog.lessons.methods[method.name], this.catalog.examples,
      (id) => this.dispatchEvent(new CustomEvent('try', { detail: { example: id, method: method.name } })));
    return found && h('details', { class: 'vl-tries' }, h('summary', {}, icon('chevron'), h('span', { text: W.ask.tries(method.title) })), found);
  }

  changed() { this.dispatchEvent(new Event('change')); }

  /** What the conversation has too much of to be asked about, in a sentence; null where it fits. */
  full() {
    const { media, history } = this.request;
    const { turns, shown } = this.catalog.limits;
    if (history.length > turns) return W.chat.tooLong(history.length, turns);
    const n = history.reduce((sum, turn) => sum + turn.media.length, media.length);
    return n > shown ? W.chat.tooMuch(n, shown) : null;
  }

  /** Check what the page can check, then ask for the race. */
  run() {
    if (this.running) return;
    if (!this.request.question.trim() && !this.request.media.length) {
      this.say(W.ask.empty, true);
      this.question.focus();
      return;
    }
    if (this.well.busy) { this.say(W.ask.uploading, true); return; }
    const full = this.full();
    if (full) { this.say(full, true); return; }
    const { sampling: chosen, ...rest } = structuredClone(this.request);
    this.dispatchEvent(new CustomEvent('run', { detail: { ...rest, ...chosen } }));
  }

  setRunning(running) {
    this.running = running;
    this.go.disabled = running;
    this.halt.disabled = !running;
    put(this.go.querySelector('span'), running ? W.ask.runningNow : W.ask.run);
    if (!running) this.say('');
  }

  say(text, wrong = false) {
    put(this.status, text);
    this.status.classList.toggle('wrong', wrong);
    this.waiting.hidden = !(this.running && text && !wrong); // until the first words come
    this.node.setAttribute('aria-busy', String(this.running));
  }
}

function section(title, body) {
  return h('div', { class: 'vl-field' }, h('span', { class: 'vl-label', text: title }), body);
}
