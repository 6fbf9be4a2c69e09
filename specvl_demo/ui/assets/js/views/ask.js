/* The form: pictures or a clip, the question, pair, methods and their parameters, sampling. One
   plain object holds the request; every control reads and writes it. Given the catalog and the
   callbacks for Run and Stop. */

import { button, h, put, icon } from './dom.js';
import { LoadingPanel } from './loading.js';
import { MediaWell } from './media.js';
import { MethodList } from './methodlist.js';
import { MethodPanel } from './methodpanel.js';
import { better, scope } from '../state/scope.js';
import { Fields, Panel, field, tell } from './settings.js';
import { Tiles } from './tiles.js';
import { W } from '../words/words.js';

/** The request before the visitor changes anything. */
export function blank(catalog) {
  const pair = catalog.pairs.find((p) => p.available) ?? catalog.pairs[0];
  return {
    pair: pair.id,
    media: [],
    question: '',
    system: '',
    methods: [...pair.first],
    settings: {},
    sampling: {},
    loading: {},
    history: [],
  };
}

/** Those of the methods that judge by the target's likeliest token: they are not defined for sampling. */
export function unsampled(catalog, { methods, settings }, temperature) {
  if (!(Number(temperature) > 0)) return [];
  return catalog.methods.filter(
    ({ name, greedy }) => greedy && methods.includes(name) && !settings[name]?.verifier,
  );
}

/** What is chosen besides pair, question and methods: sampling, and how this pair is loaded. */
export const chosen = (request) => ({ ...request.sampling, ...request.loading[request.pair] });

export class Ask extends EventTarget {
  /** races: the list of the visitor's own races. */
  constructor(catalog, api, races) {
    super();
    this.catalog = catalog;
    this.api = api;
    this.races = races;
    this.request = blank(catalog);
    this.home = this.request.pair; // asked about pictures of the visitor's own
    this.running = false;
    this.last = null;
    this.build();
    this.show();
  }

  build() {
    const { catalog, api } = this;
    this.well = new MediaWell(catalog, api, (media, coming) => {
      const { pair } = this.request;
      this.settle();
      this.replaced(media, coming);
      this.request.media = media;
      if (this.request.pair !== pair) this.show();
      this.changed();
    });
    this.question = h('textarea', {
      id: 'vl-question',
      rows: '2',
      placeholder: W.ask.questionHint,
      on: {
        input: () => this.write('question'),
        keydown: (e) => {
          if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
          e.preventDefault();
          this.run();
        },
      },
    });
    this.questionLabel = h('label', { for: 'vl-question', text: W.ask.question });
    this.untyped = h('p.vl-help.vl-untyped', { role: 'status' });
    this.goesOn = h('span');
    this.keepOn = h('input', {
      type: 'checkbox',
      id: 'vl-keep-on',
      on: { change: () => this.changed() },
    });
    this.keeping = h('label', { for: 'vl-keep-on' }, this.keepOn, W.chat.keepOn);
    this.fresh = button(W.chat.clear, () => this.dispatchEvent(new Event('fresh')));
    this.turnNote = h(
      'div.vl-help.vl-turn',
      { role: 'status' },
      this.goesOn,
      this.fresh,
      this.keeping,
    );
    this.tiles = new Tiles(catalog, (example) => this.choose(example));
    this.pair = h(
      'select',
      { id: 'vl-pair', on: { change: () => this.change(this.pair.value) } },
      catalog.pairs
        .filter((p) => p.available)
        .map((p) => h('option', { value: p.id, text: p.title })),
    );
    const larger = catalog.pairs.filter((p) => !p.available);
    this.elsewhere =
      larger.length > 0 &&
      h(
        'details.vl-others',
        h('summary', icon('chevron'), h('span', W.ask.elsewhere(larger.length))),
        h('p.vl-help', W.ask.elsewhereHelp),
        h(
          'dl.vl-elsewhere',
          larger.flatMap(({ title, reason }) => [h('dt', title), h('dd', reason)]),
        ),
      );
    this.pairNote = h('p.vl-help');
    this.scopeNote = h('p.vl-scope', { role: 'status' });
    this.switch = button('', () => this.change(this.fitting.id), 'vl-small vl-switch', {
      hidden: true,
    });
    this.methods = new MethodList(catalog, {
      toggle: (name, on) => this.toggle(name, on),
      refusal: (method) => this.refusal(method),
      race: () => this.racePapers(),
    });
    this.settings = h('div.vl-settings');
    this.sampling = new Panel(W.ask.sampling, () => this.resetSampling());
    this.loading = new LoadingPanel(catalog, () => this.changed());
    this.system = h('textarea', {
      id: 'vl-system',
      rows: '2',
      on: { input: () => this.write('system') },
    });
    this.changes = h('span.vl-changed');
    this.showSampling();
    this.go = h(
      'button',
      { type: 'submit', class: 'vl-primary', id: 'vl-run' },
      icon('play'),
      h('span', W.ask.run),
    );
    this.halt = h(
      'button.vl-secondary',
      { id: 'vl-stop', disabled: true, on: { click: () => this.dispatchEvent(new Event('stop')) } },
      icon('stop'),
      W.ask.stop,
    );
    this.more = h(
      'button.vl-secondary.vl-more',
      { 'aria-expanded': 'false', 'aria-label': W.ask.more, on: { click: () => this.unfold() } },
      icon('edit'),
      h('span', W.ask.moreShort),
    );
    this.waiting = h('progress.vl-waiting', { hidden: true, 'aria-label': W.ask.waiting });
    this.status = h('p.vl-status', { id: 'vl-status' }); // the stage says the same aloud
    this.node = h(
      'form.vl-ask',
      {
        'aria-label': W.ask.title,
        on: {
          submit: (e) => {
            e.preventDefault();
            this.run();
          },
          input: () => this.settle(),
        },
      },
      h(
        'div.vl-ask-rest',
        this.well.node,
        h(
          'div.vl-field',
          h('div.vl-line', this.questionLabel, h('span.vl-help.vl-keys', W.ask.keys)),
          this.question,
          this.untyped,
          this.turnNote,
        ),
        this.methods.node,
      ),
      h(
        'div.vl-ask-foot',
        this.waiting,
        this.status,
        h('div.vl-buttons', this.more, this.go, this.halt),
      ),
      h(
        'div.vl-ask-start',
        catalog.examples.length > 0 &&
          h('div.vl-field', h('span.vl-label', W.ask.examples), this.tiles.node),
        this.races,
      ),
      h(
        'div.vl-ask-rest',
        h(
          'div.vl-field',
          h('label', { for: 'vl-pair', text: W.ask.pair }),
          this.pair,
          this.pairNote,
          this.scopeNote,
          this.switch,
          this.elsewhere,
        ),
        h(
          'details.vl-parameters',
          h('summary', icon('chevron'), h('span', W.ask.parameters), this.changes),
          this.settings,
          this.sampling.node,
          this.loading.node,
        ),
      ),
    );
  }

  /** What was wrong with the question before it was changed is over. */
  settle() {
    if (!this.status.classList.contains('wrong')) return;
    this.say('');
    this.dispatchEvent(new Event('settled'));
  }

  /** Take over what was typed. */
  write(key) {
    this.request[key] = this[key].value;
    this.changed();
  }

  /** On a small screen the form is folded away under its own button. */
  unfold(open = !this.node.classList.contains('open')) {
    this.node.classList.toggle('open', open);
    this.more.setAttribute('aria-expanded', String(open));
    if (!open) return;
    this.question.focus({ preventScroll: true });
    // Only when it is laid out: until then the browser holds what is in sight where it is.
    requestAnimationFrame(() => this.well.node.scrollIntoView({ block: 'start' }));
  }

  setHistory(turns) {
    this.request.history = turns;
    this.question.placeholder = !turns.length
      ? W.ask.questionHint
      : turns.some((turn) => turn.media.length)
        ? W.chat.questionHint
        : W.chat.textHint;
    this.changed();
  }

  /** What running the form means for the conversation whose last question is on the page, {asked,
   *  turn}, or null: 'same' asks it again, 'on' adds a turn, 'new' begins another conversation. A
   *  single question is no conversation yet: only who says so goes on from it. */
  get next() {
    const { request, last } = this;
    if (!last) return 'same';
    const { asked } = last;
    const shown = paths(request.media) === paths(asked.media);
    if (shown && request.question.trim() === asked.question.trim()) return 'same';
    if (request.pair !== asked.pair) return 'new';
    if (shown && !request.question.trim()) return 'new'; // the picture is described
    const begun = shown && asked.history.length > 0;
    return begun || (this.mayKeep && this.keepOn.checked) ? 'on' : 'new';
  }

  /** Whether another question can go on from the last one: of its pictures, or with further ones. */
  get mayKeep() {
    const { request, last } = this;
    const { asked } = last ?? {};
    if (request.pair !== asked?.pair) return false;
    return request.media.length > 0 || asked.media.length === 0;
  }

  /** What the model is asked: the question, or where it is empty, to describe what is shown. */
  inWords({ question, media } = this.request) {
    const { describe } = this.catalog;
    if (question.trim() || !media.length) return question;
    if (media.some((m) => m.kind === 'video')) return describe.video;
    return media.length > 1 ? describe.images : describe.image;
  }

  /** The turns that the question in the form continues. */
  get earlier() {
    const { last, next, request } = this;
    if (next === 'same') return request.history;
    return next === 'on' ? [...last.asked.history, last.turn] : [];
  }

  /** Add the last question to the conversation, or begin another one, according to `next`. */
  turnOver() {
    const { earlier, last, next, request } = this;
    this.keepOn.checked = false;
    if (next === 'same') return;
    const sent = new Set(last.asked.media.map((m) => m.path));
    if (next === 'on') request.media = request.media.filter((m) => !sent.has(m.path));
    this.last = null; // it is in the conversation now, or in none
    this.dispatchEvent(new CustomEvent('turn', { detail: earlier }));
    this.well.show(request.media);
  }

  /** The conversation and the form's pictures as they were before a run that came to nothing. */
  undo({ turns, media, last }) {
    this.dispatchEvent(new CustomEvent('turn', { detail: turns }));
    this.last = last;
    this.request.media = media;
    this.well.show(media);
    this.changed();
  }

  /** Make room for the next question of the conversation, or for one about these pictures. */
  nextQuestion({ question = '', media = [] } = {}) {
    Object.assign(this.request, { question, media });
    this.update();
    this.question.focus();
  }

  /** The chosen pair, as the catalog describes it. */
  get pairFacts() {
    return this.catalog.pairs.find((p) => p.id === this.request.pair);
  }

  /** Why a method cannot be chosen now; null if it can. */
  refusal(method) {
    const served = this.pairFacts.methods[method.name];
    if (typeof served === 'string') return served;
    const { lanes } = this.catalog.limits;
    const full =
      this.request.methods.length >= lanes && !this.request.methods.includes(method.name);
    return full ? W.ask.fullLanes(lanes) : null;
  }

  toggle(name, on) {
    const { request } = this;
    const refused = on && this.refusal(this.catalog.methods.find((m) => m.name === name));
    if (refused) this.methods.say(refused);
    else request.methods = [...request.methods.filter((m) => m !== name), ...(on ? [name] : [])];
    this.update();
  }

  /** The methods of the catalog's papers that the pair supports. */
  get paperMethods() {
    const { methods } = this.pairFacts;
    return this.catalog.papers.filter((name) => methods[name] === true);
  }

  /** Race all papers against the plain model, at once. */
  racePapers() {
    if (this.running) return;
    this.request.methods = this.paperMethods;
    this.update();
    this.run();
  }

  /** Fill the whole form from an example: the page shows the race that was recorded with it. */
  choose(example) {
    this.fill(example);
    this.dispatchEvent(new CustomEvent('example', { detail: example }));
  }

  fill(example, methods = example.methods) {
    this.well.forgive();
    Object.assign(this.request, this.of(example, methods), { history: this.request.history });
    this.update();
  }

  /** The request of an example. */
  of(example, methods = example.methods) {
    const own = example.settings && methods === example.methods;
    return {
      ...blank(this.catalog),
      media: example.media.map((m) => ({ ...m, example: example.id })),
      question: example.question,
      methods: [...methods],
      settings: own ? { [methods[0]]: { ...example.settings } } : {},
      ...(example.pair && { pair: example.pair }),
    };
  }

  /** The form's request as a text that is equal if the same race is requested. */
  key(request = this.request) {
    return JSON.stringify(parts(request));
  }

  /** What the form has in place of what a request has, in words. */
  changedSince(asked) {
    const now = parts(this.request).map((part) => JSON.stringify(part));
    const bare = !this.request.media.length;
    const words = W.run.changes.map((word, i) => (i === 1 && bare ? W.run.without : word));
    return words.filter((_, i) => now[i] !== JSON.stringify(parts(asked)[i]));
  }

  /** Take over a whole request, for example from a link. Names of a pair and of methods that are not known here are
   *  dropped, and returned. */
  restore(request) {
    const known = blank(this.catalog);
    for (const key of Object.keys(known))
      if (typeof request[key] === typeof known[key]) this.request[key] = request[key];
    const names = new Set(this.catalog.methods.map((m) => m.name));
    const unknown = [...this.request.methods].filter((m) => !names.has(m));
    this.request.methods = [...this.request.methods]
      .filter((m) => names.has(m) && m !== 'ar')
      .slice(0, this.catalog.limits.lanes);
    if (!this.catalog.pairs.some((p) => p.id === this.request.pair)) {
      unknown.unshift(this.request.pair);
      this.request.pair = known.pair;
    }
    this.update();
    return unknown;
  }

  /** Bring every control in line with the request, and tell that it has changed. */
  update() {
    this.show();
    this.changed();
  }

  /** Bring every control in line with the request. */
  show() {
    const { request } = this;
    this.well.show(request.media);
    if (this.question.value !== request.question) this.question.value = request.question;
    this.pair.value = request.pair;
    const pair = this.pairFacts;
    put(this.pairNote, pair.available ? pair.help : pair.reason);
    this.mark();
    this.system.value = request.system;
    this.showSampling();
    this.loading.show(pair, (request.loading[pair.id] ??= {}));
    this.panels();
  }

  /** Which methods are chosen and possible; those that cannot sample have no lane. */
  mark() {
    const { request } = this;
    const left = this.unsampled.map(({ name }) => name);
    const lanes = request.methods.filter((name) => !left.includes(name)); // the plain lane's number is 0
    this.methods.show(request, this.pairFacts.methods, lanes, this.paperMethods.length);
  }

  /** Whether the form still asks what an example asks, of the same pictures, and nothing before. */
  untouched({ question, media }) {
    const { request } = this;
    return (
      !request.history.length &&
      request.question.trim() === question.trim() &&
      paths(request.media) === paths(media)
    );
  }

  /** An example's question goes with its pictures, unless those that take their place are as many and of the same kind;
   *  its pair gives way to the page's, or the one that the visitor chose. coming: files that are still on their way. */
  replaced(media, coming) {
    const { catalog, given, request } = this;
    this.given = null;
    const asks = [given?.question, ''].includes(request.question);
    if (given && asks && paths(media) === paths(given.media)) {
      Object.assign(request, given); // the new file was no picture
      this.question.value = given.question;
      return;
    }
    const example = catalog.examples.find((e) => this.untouched(e));
    if (!example || media.some((item) => item.example) || !media.length) return;
    const { question, pair, methods, settings } = request;
    this.given = { media: request.media, question, pair, methods, settings };
    if (pair !== this.home) {
      const { id, first } = catalog.pairs.find((p) => p.id === this.home);
      Object.assign(request, { pair: id, methods: [...first], settings: {} });
    }
    const same = media.every((item) => item.kind === example.media[0]?.kind);
    if (!same || media.length + coming !== example.media.length)
      request.question = this.question.value = '';
  }

  /** Change the pair. A visitor who has not chosen methods gets the pair's default ones; an example
   *  that was not touched gives way to one of the pair's, and what a visitor typed or added stays. */
  change(id) {
    this.home = id;
    const [before, now] = [this.request.pair, id].map((one) =>
      this.catalog.pairs.find((pair) => pair.id === one),
    );
    if (String(this.request.methods) === String(before.first))
      this.request.methods = [...now.first];
    this.request.pair = id;
    const { examples } = this.catalog;
    const own = examples.find((e) => e.pair === id);
    const shown = examples.find((e) => this.untouched(e));
    if (own && shown && shown.pair !== id) {
      this.choose(own); // the other pair's example means nothing to this one
      return;
    }
    this.update();
  }

  showSampling() {
    const fields = new Fields(this.catalog.sampling, this.request.sampling, () => {
      this.sampling.tally(fields.changed);
      this.mark(); // some cannot sample
      this.changed();
    });
    this.sampling.fill(
      fields.node,
      field('vl-system', W.ask.system, this.system, W.ask.systemHelp),
    );
    this.sampling.tally(fields.changed);
  }

  resetSampling() {
    this.request.sampling = {};
    this.request.system = '';
    this.update();
  }

  /** One panel of parameters for every chosen method; panels that stay keep their state. */
  panels() {
    const old = new Map([...this.settings.children].map((node) => [node.dataset.key, node]));
    this.settings.replaceChildren(
      ...this.request.methods.map((name) => {
        const values = (this.request.settings[name] ??= {});
        const key = `${this.request.pair}/${name}`;
        if (old.get(key)?.values === values) return old.get(key);
        const method = this.catalog.methods.find((m) => m.name === name);
        const panel = new MethodPanel(method, this.request.pair, values, {
          ask: this.api.panel,
          change: () => this.changed(),
          tally: () => this.tally(),
          like: () => this.like(name),
        });
        panel.node.dataset.key = key;
        Object.assign(panel.node, { values, panel });
        return panel.node;
      }),
    );
  }

  /** What the chosen pair cannot judge about the question, in a sentence; '' if nothing. */
  get scope() {
    return this.request.question.trim() || this.request.media.length
      ? scope(this.catalog, this.request)
      : '';
  }

  /** The example whose own settings a method has, the one in the form first; undefined where there is none. */
  like(name) {
    const { pair, settings } = this.request;
    const own = JSON.stringify(settings[name]);
    const alike = this.catalog.examples.filter(
      (e) => e.pair === pair && e.methods[0] === name && JSON.stringify(e.settings) === own,
    );
    return alike.find((e) => this.untouched(e)) ?? alike[0];
  }

  /** How many values were changed, those of examples apart. */
  tally() {
    const panels = [...this.settings.children].map((node) => node.panel);
    const own = panels.filter((panel) => !panel.on.like());
    const chose = Object.keys(chosen(this.request)).length;
    const examples = panels.map((panel) => panel.on.like()).filter(Boolean);
    tell(
      this.changes,
      own.reduce((sum, panel) => sum + panel.changed, chose),
      examples,
    );
  }

  changed() {
    this.tally();
    const { next, last, request } = this;
    const empty = !request.question.trim() && request.media.length > 0;
    put(this.untyped, empty ? W.ask.untyped(this.inWords()) : '');
    if (!request.history.length)
      this.question.placeholder = empty ? this.inWords() : W.ask.questionHint;
    const { earlier } = this;
    const pictures = earlier.reduce((sum, turn) => sum + turn.media.length, 0);
    const on = earlier.length > 0 && !(last && next === 'same');
    put(this.goesOn, on ? W.chat.on(earlier.length, pictures) : next === 'new' ? W.chat.fresh : '');
    put(this.questionLabel, earlier.length ? W.chat.question : W.ask.question);
    const chose = this.mayKeep && this.keepOn.checked;
    this.fresh.hidden = next !== 'on' || chose; // otherwise the list of earlier questions has it
    this.keeping.hidden = !this.mayKeep || next === 'same' || (next === 'on' && !chose);
    this.turnNote.classList.toggle('kept', this.mayKeep); // its place is there before it says anything
    put(this.scopeNote, this.scope);
    this.fitting = this.scope && better(this.catalog, this.request);
    this.switch.hidden = !this.fitting;
    if (this.fitting) put(this.switch, W.scope.use(this.fitting.title));
    this.dispatchEvent(new Event('change'));
  }

  /** What the question or its conversation has too much of, in a sentence; null if nothing. */
  full() {
    const { media, history, question, system } = this.request;
    const { turns, shown, question: most } = this.catalog.limits;
    if (question.length > most) return W.ask.long(question.length, most);
    if (system.length > most) return W.ask.longSystem(system.length, most);
    if (history.length > turns) return W.chat.tooLong(history.length, turns);
    const n = history.reduce((sum, turn) => sum + turn.media.length, media.length);
    return n > shown ? W.chat.tooMuch(n, shown) : null;
  }

  get unsampled() {
    return unsampled(this.catalog, this.request, this.request.sampling.temperature);
  }

  /** Check what the page can check, then request the race; `over` replaces values of the form. */
  run(over = {}) {
    if (this.running) return;
    const empty = !this.request.question.trim() && !this.request.media.length;
    if (empty || this.well.busy) {
      this.say(empty ? W.ask.empty : W.ask.uploading, true);
      if (empty) this.question.focus();
      return;
    }
    const before = { turns: this.request.history, media: this.request.media, last: this.last };
    this.turnOver();
    const { sampling, loading, methods: all, ...rest } = structuredClone(this.request);
    const left = this.unsampled;
    const methods = all.filter((name) => !left.some((method) => method.name === name));
    const without = left.map(({ title }) => title);
    const [refused] = rest.media.length ? [] : this.well.refused;
    const wrong =
      (refused && W.media.refusedRun(refused.name)) ??
      this.full() ??
      this.loading.refusal ??
      (left.length && !methods.length ? W.ask.greedy(without) : null);
    if (wrong) {
      this.undo(before);
      this.say(wrong, true);
      return;
    }
    this.well.forgive(); // it runs without them
    this.unfold(false);
    const request = {
      ...rest,
      methods,
      baseline: true,
      ...chosen({ ...rest, sampling, loading }),
      ...over,
    };
    this.dispatchEvent(new CustomEvent('run', { detail: { ...request, without, before } }));
  }

  setRunning(running) {
    this.running = running;
    const [off, on] = running ? [this.go, this.halt] : [this.halt, this.go];
    const had = document.activeElement;
    const lost = had === off || (this.node.contains(had) && !had.offsetParent); // or folded away
    off.disabled = true;
    on.disabled = false;
    if (lost) on.focus({ preventScroll: true });
    put(this.go.querySelector('span'), running ? W.ask.runningNow : W.ask.run);
    if (!running) this.say('');
  }

  say(text, wrong = false) {
    put(this.status, text);
    this.status.classList.toggle('wrong', wrong);
    this.waiting.hidden = !(this.running && text && !wrong); // until the first words come
    this.node.setAttribute('aria-busy', String(this.running));
    this.dispatchEvent(new CustomEvent('say', { detail: { text, wrong } }));
  }
}

/** Everything by which one requested race differs from another, in the order of W.run.changes. */
const parts = ({ methods, settings, ...request }) => [
  request.pair,
  paths(request.media),
  request.question.trim(),
  request.system,
  methods.map((name) => [name, Object.entries(settings[name] ?? {}).sort()]),
  Object.entries(chosen(request)).sort(),
  request.history.length,
];

/** The files of a question as a text that is equal if they are the same. */
const paths = (media) => media.map((m) => m.path).join();
