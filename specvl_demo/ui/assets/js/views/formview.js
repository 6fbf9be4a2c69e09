/* Draws the form (state/form.js): pictures or a clip, the question, pair, methods and their parameters, sampling. */

import { button, folded, h, icon, options, put, tell } from './dom.js';
import { LoadingPanel } from './loading.js';
import { MediaWell } from './media.js';
import { MethodList } from './methodlist.js';
import { MethodPanel } from './methodpanel.js';
import { Fields, Panel, field, tally } from './settings.js';
import { Tiles } from './tiles.js';
import { exampleLike } from '../state/examples.js';
import { chosen } from '../state/request.js';
import { W } from '../words/words.js';

/** @import { Form } from '../state/form.js' */
/** @import { Catalog } from '../state/types.js' */

export class FormView {
  /** races: the list of the visitor's own races. panel(asked): a method's parameters, from the server.
   *  @param {Form} form @param {Catalog} catalog @param {(asked: object) => Promise<any>} panel */
  constructor(form, catalog, panel, races) {
    this.form = form;
    this.catalog = catalog;
    this.panel = panel;
    this.races = races;
    this.node = this.build();
    form.on('update', () => this.show());
    form.on('change', () => this.showChange());
    form.on('refused', (sentence) => this.methods.say(sentence));
    form.on('turns', () => this.hint());
    form.on('running', () => this.showRunning());
    form.on('say', ({ text, wrong }) => this.say(text, wrong));
    // Where it is folded away, it opens.
    form.on('focus', () => (this.more.offsetParent ? this.unfold(true) : this.question.focus()));
    form.on('scope', () => (this.scopeNote.hidden = !form.scopeShown));
    form.on('answered', () => {
      if (document.activeElement === this.question) this.question.select(); // the next one replaces it
    });
    this.show();
  }

  build() {
    const submit = (e) => {
      e.preventDefault();
      this.form.run();
    };
    const { node } = new Tiles(this.catalog, (example) => this.form.choose(example));
    const tiles = h('div.vl-field', h('span.vl-label', W.ask.examples), node);
    return h(
      'form.vl-ask',
      { 'aria-label': W.ask.title, on: { submit, input: () => this.form.settle() } },
      this.buildQuestion(),
      this.buildFoot(),
      h('div.vl-ask-start', this.catalog.examples.length > 0 && tiles, this.races),
      h('div.vl-ask-rest', this.buildPair(), this.buildParameters()),
    );
  }

  /** Build what is asked: pictures, question, methods. */
  buildQuestion() {
    const { form, catalog } = this;
    const keydown = (e) => {
      if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
      e.preventDefault();
      form.run();
    };
    this.well = new MediaWell(form.files);
    this.question = this.textarea('question', { keydown });
    this.questionLabel = h('label', { for: 'vl-question', text: W.ask.question });
    this.untyped = h('p.vl-help.vl-untyped', { role: 'status' });
    this.methods = new MethodList(catalog, {
      toggle: (name, on) => form.toggle(name, on),
      refusal: (method) => form.refusal(method),
      race: () => form.runPaperMethods(),
    });
    const line = h('div.vl-line', this.questionLabel, h('span.vl-help.vl-keys', W.ask.keys));
    const asked = h('div.vl-field', line, this.question, this.untyped, this.buildTurn());
    return h('div.vl-ask-rest', this.well.node, asked, this.methods.node);
  }

  /** A text field that writes what is typed into the request. @param {'question' | 'system'} key */
  textarea(key, on = {}) {
    const input = ({ target }) => {
      this.form.request[key] = target.value;
      this.form.changed();
    };
    return h('textarea', { id: `vl-${key}`, rows: '2', on: { input, ...on } });
  }

  /** Build the line that says whether the question goes on from the last one. */
  buildTurn() {
    const { form } = this;
    this.goesOn = h('span');
    const change = () => {
      form.followUp = this.followUp.checked;
      form.changed();
    };
    this.followUp = h('input', { type: 'checkbox', id: 'vl-keep-on', on: { change } });
    this.keeping = h('label', { for: 'vl-keep-on' }, this.followUp, W.chat.keepOn);
    this.fresh = button(W.chat.clear, () => form.emit('fresh'));
    const parts = [this.goesOn, this.fresh, this.keeping];
    return (this.turnNote = h('div.vl-help.vl-turn', { role: 'status' }, parts));
  }

  /** Build the choice of a pair, and what is said of it. */
  buildPair() {
    const { pairs } = this.catalog;
    const here = pairs.filter((p) => p.available);
    const larger = pairs.filter((p) => !p.available);
    const change = () => this.form.changePair(this.pair.value);
    const titles = here.map(({ id, title }) => [id, title]);
    this.pair = h('select', { id: 'vl-pair', on: { change } }, options(titles));
    this.pairNote = h('p.vl-help');
    this.scopeNote = h('p.vl-scope', { role: 'status' });
    const turn = () => this.form.changePair(this.form.fittingPair.id);
    this.switch = button('', turn, 'vl-small vl-switch', { hidden: true });
    const reasons = larger.flatMap(({ title, reason }) => [h('dt', title), h('dd', reason)]);
    const help = h('p.vl-help', W.ask.elsewhereHelp);
    const list = h('dl.vl-elsewhere', reasons);
    const elsewhere = folded('details.vl-others', W.ask.elsewhere(larger.length), help, list);
    return h(
      'div.vl-field',
      h('label', { for: 'vl-pair', text: W.ask.pair }),
      this.pair,
      this.pairNote,
      this.scopeNote,
      this.switch,
      larger.length > 0 && elsewhere,
    );
  }

  /** Build the folded panels: methods, sampling, loading. */
  buildParameters() {
    this.settings = h('div.vl-settings');
    this.sampling = new Panel(W.ask.sampling, () => this.form.resetSampling());
    this.loading = new LoadingPanel(this.catalog, this.form);
    this.system = this.textarea('system');
    this.changes = h('span.vl-changed');
    this.showSampling();
    const heading = [h('span', W.ask.parameters), this.changes];
    const panels = [this.settings, this.sampling.node, this.loading.node];
    return folded('details.vl-parameters', heading, ...panels);
  }

  /** Build the buttons that run and stop, and the line that says what happens. */
  buildFoot() {
    const go = { type: 'submit', class: 'vl-primary', id: 'vl-run' };
    this.go = h('button', go, icon('play'), h('span', W.ask.run));
    const halt = { id: 'vl-stop', disabled: true, sign: 'stop' };
    this.halt = button(W.ask.stop, () => this.form.emit('stop'), 'vl-secondary', halt);
    const unfold = () => this.unfold();
    const more = { 'aria-expanded': 'false', 'aria-label': W.ask.more, on: { click: unfold } };
    const short = h('span', W.ask.moreShort);
    this.more = h('button.vl-secondary.vl-more', more, icon('edit'), short);
    this.waiting = h('progress.vl-waiting', { hidden: true, 'aria-label': W.ask.waiting });
    this.status = h('p.vl-status', { id: 'vl-status' }); // the stage says the same aloud
    const buttons = h('div.vl-buttons', this.more, this.go, this.halt);
    return h('div.vl-ask-foot', this.waiting, this.status, buttons);
  }

  /** Open the form, or close it: on a small screen it is folded away under its own button. */
  unfold(open = !this.node.classList.contains('open')) {
    this.node.classList.toggle('open', open);
    this.more.setAttribute('aria-expanded', String(open));
    if (!open) return;
    this.question.focus({ preventScroll: true });
    // Only when it is laid out: until then the browser holds what is in sight where it is.
    requestAnimationFrame(() => this.well.node.scrollIntoView({ block: 'start' }));
  }

  /** Bring every control in line with a request that was replaced. */
  show() {
    const { request, pairFacts: pair } = this.form;
    this.pair.value = request.pair;
    put(this.pairNote, pair.available ? pair.help : pair.reason);
    this.mark();
    this.system.value = request.system;
    this.showSampling();
    this.loading.show(pair, (request.loading[pair.id] ??= {}));
    this.panels();
  }

  /** Show which methods are chosen and possible; those that cannot sample have no lane. */
  mark() {
    const { request, unsampled, pairFacts, paperMethods } = this.form;
    const left = unsampled.map(({ name }) => name);
    const lanes = request.methods.filter((name) => !left.includes(name)); // the plain lane's number is 0
    this.methods.show(request, pairFacts.methods, lanes, paperMethods.length);
  }

  /** Make the fields of sampling anew. */
  showSampling() {
    const count = () => this.sampling.tally(fields.changed + further.changed);
    const change = () => {
      count();
      this.mark(); // some cannot sample
      this.form.changed();
    };
    const values = this.form.request.sampling;
    const fields = new Fields(this.catalog.sampling, values, change);
    const further = new Fields(this.catalog.further, values, change);
    const open = { open: further.changed > 0 };
    const more = folded('details.vl-further', W.ask.further, open, further.node);
    const system = field('vl-system', W.ask.system, this.system, W.ask.systemHelp);
    this.sampling.fill(fields.node, more, system);
    count();
  }

  /** Show one panel of parameters for every chosen method; panels that stay keep their state. */
  panels() {
    const { form } = this;
    const { pair, settings, methods } = form.request;
    const old = new Map([...this.settings.children].map((node) => [node.dataset.key, node]));
    const panel = (name) => {
      const values = (settings[name] ??= {});
      const key = `${pair}/${name}`;
      if (old.get(key)?.values === values) return old.get(key);
      const method = this.catalog.methods.find((m) => m.name === name);
      const made = new MethodPanel(method, pair, values, {
        ask: this.panel,
        change: () => form.changed(),
        tally: () => this.tally(),
        like: () => exampleLike(this.catalog, form.request, name),
      });
      made.node.dataset.key = key;
      return Object.assign(made.node, { values, panel: made });
    };
    this.settings.replaceChildren(...methods.map(panel));
  }

  /** Say how many values were changed, those of examples apart. */
  tally() {
    const panels = [...this.settings.children].map(({ panel }) => [panel, panel.on.like()]);
    const examples = panels.flatMap(([, example]) => example ?? []);
    const others = Object.keys(chosen(this.form.request)).length;
    const changed = panels.reduce((n, [own, like]) => n + (like ? 0 : own.changed), others);
    tally(this.changes, changed, examples);
  }

  /** Show what a change of the request changes around it. */
  showChange() {
    const { form } = this;
    const { request, next, mayFollow } = form;
    this.tally();
    if (this.question.value !== request.question) this.question.value = request.question;
    this.hint();
    this.followUp.checked = form.followUp;
    const chose = mayFollow && form.followUp;
    this.fresh.hidden = next !== 'on' || chose; // otherwise the list of earlier questions has it
    this.keeping.hidden = !mayFollow || next === 'same' || (next === 'on' && !chose);
    this.turnNote.classList.toggle('kept', mayFollow); // its place is there before it says anything
    put(this.scopeNote, form.scope);
    const { fittingPair } = form;
    this.switch.hidden = !fittingPair;
    if (fittingPair) put(this.switch, W.scope.use(fittingPair.title));
  }

  /** Say what an empty question asks, and how the question continues the conversation. */
  hint() {
    const { last, earlier, next, request } = this.form;
    const { history, media, question } = request;
    const empty = !question.trim() && media.length > 0;
    const words = this.form.questionOf();
    put(this.untyped, empty ? W.ask.untyped(words) : '');
    const pictures = (turns) => turns.reduce((sum, turn) => sum + turn.media.length, 0);
    const followed = pictures(history) ? W.chat.followHint : W.chat.textHint;
    const first = empty ? words : this.form.pairFacts.describe.image;
    this.question.placeholder = history.length ? followed : first;
    const fresh = next === 'new' ? W.chat.fresh : '';
    const on = earlier.length > 0 && !(last && next === 'same');
    put(this.goesOn, on ? W.chat.on(earlier.length, pictures(earlier)) : fresh);
    put(this.questionLabel, earlier.length ? W.chat.question : W.ask.question);
  }

  /** Offer Stop while something runs, else Run. */
  showRunning() {
    const { running } = this.form;
    if (running) this.unfold(false);
    const [off, on] = running ? [this.go, this.halt] : [this.halt, this.go];
    const had = /** @type {HTMLElement} */ (document.activeElement);
    const lost = had === off || (this.node.contains(had) && !had.offsetParent); // or folded away
    off.disabled = true;
    on.disabled = false;
    if (lost) on.focus({ preventScroll: true });
    put(this.go.querySelector('span'), running ? W.ask.runningNow : W.ask.run);
  }

  /** Write what happens, or what is wrong. */
  say(text, wrong) {
    const { running } = this.form;
    tell(this.status, text, wrong);
    this.waiting.hidden = !(running && text && !wrong); // until the first words come
    this.node.setAttribute('aria-busy', String(running));
  }
}
