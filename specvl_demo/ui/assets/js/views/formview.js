/* Draws the form (state/form.js): pictures or a clip, the question, pair, methods and their parameters, sampling. */

import { button, checkbox, folded, h, icon, options, put, tell } from './dom.js';
import { loadingPanel } from './loading.js';
import { MediaWell } from './media.js';
import { methodList } from './methodlist.js';
import { methodPanel } from './methodpanel.js';
import { field, fieldsOf, panelOf, tally } from './settings.js';
import { Tiles } from './tiles.js';
import { chosen } from '../state/request.js';
import { W } from '../words/words.js';

const countPictures = (turns) => turns.reduce((sum, turn) => sum + turn.media.length, 0);

export class FormView {
  /** ask(asked): a method's parameters, from the server; races: the list of the visitor's own. @param {Form} form */
  constructor(form, catalog, ask, races) {
    this.form = form;
    this.catalog = catalog;
    this.ask = ask;
    this.races = races;
    this.panels = [];
    this.node = this.build();
    form.on('update', () => this.show());
    form.on('change', () => this.showChange());
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
      { 'aria-label': W.ask.title, submit, input: () => this.form.settle() },
      this.buildQuestion(),
      this.buildFoot(),
      h('div.vl-ask-start', this.catalog.examples.length > 0 && tiles, this.races),
      h('div.vl-ask-rest', this.buildPair(), this.buildParameters()),
    );
  }

  buildQuestion() {
    const { form } = this;
    const keydown = (e) => {
      if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
      e.preventDefault();
      form.run();
    };
    this.well = new MediaWell(form.files);
    this.question = this.textarea('question', { keydown });
    this.questionLabel = h('label', { for: 'vl-question', text: W.ask.question });
    this.untyped = h('p.vl-help.vl-untyped', { role: 'status' });
    this.methods = methodList(form);
    const line = h('div.vl-line', this.questionLabel, h('span.vl-help.vl-keys', W.ask.keys));
    const asked = h('div.vl-field', line, this.question, this.untyped, this.buildTurn());
    return h('div.vl-ask-rest', this.well.node, asked, this.methods.node);
  }

  /** @param {'question' | 'system'} key of the request */
  textarea(key, more = {}) {
    const input = ({ target }) => {
      this.form.request[key] = target.value;
      this.form.changed();
    };
    return h('textarea', { id: `vl-${key}`, rows: 2, input, ...more });
  }

  /** The line that says whether the question goes on from the last one. */
  buildTurn() {
    const { form } = this;
    this.goesOn = h('span');
    const follow = (on) => {
      form.followUp = on;
      form.changed();
    };
    this.followUp = checkbox(follow, { id: 'vl-keep-on' });
    this.keeping = h('label', { for: 'vl-keep-on' }, this.followUp, W.chat.keepOn);
    this.fresh = button(W.chat.clear, () => form.emit('fresh'));
    const parts = [this.goesOn, this.fresh, this.keeping];
    return (this.turnNote = h('div.vl-help.vl-turn', { role: 'status' }, parts));
  }

  buildPair() {
    const { form } = this;
    const { pairs } = this.catalog;
    const larger = pairs.filter(({ available }) => !available);
    const here = pairs.filter(({ available }) => available);
    const titles = here.map(({ id, title }) => [id, title]);
    const change = () => form.changePair(this.pair.value);
    this.pair = h('select', { id: 'vl-pair', change }, options(titles));
    this.pairNote = h('p.vl-help');
    this.scopeNote = h('p.vl-scope', { role: 'status' });
    const turn = () => form.changePair(form.fittingPair.id);
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

  buildParameters() {
    this.settings = h('div.vl-settings');
    this.sampling = panelOf(W.ask.sampling, () => this.form.resetSampling());
    this.loading = loadingPanel(this.form);
    this.system = this.textarea('system');
    this.changes = h('span.vl-changed');
    this.showSampling();
    const heading = [h('span', W.ask.parameters), this.changes];
    const panels = [this.settings, this.sampling.node, this.loading.node];
    return folded('details.vl-parameters', heading, ...panels);
  }

  buildFoot() {
    const go = { type: 'submit', id: 'vl-run' };
    this.go = h('button.vl-primary', go, icon('play'), h('span', W.ask.run));
    const halt = { id: 'vl-stop', disabled: true, sign: 'stop' };
    this.halt = button(W.ask.stop, () => this.form.emit('stop'), 'vl-secondary', halt);
    const more = { 'aria-expanded': 'false', 'aria-label': W.ask.more, sign: 'edit' };
    const short = h('span', W.ask.moreShort);
    this.more = button(short, () => this.unfold(), 'vl-secondary vl-more', more);
    this.waiting = h('progress.vl-waiting', { hidden: true, 'aria-label': W.ask.waiting });
    this.status = h('p.vl-status', { id: 'vl-status' }); // the stage says the same aloud
    const buttons = h('div.vl-buttons', this.more, this.go, this.halt);
    return h('div.vl-ask-foot', this.waiting, this.status, buttons);
  }

  /** On a small screen the form is folded away under its own button. */
  unfold(open = !this.node.classList.contains('open')) {
    this.node.classList.toggle('open', open);
    this.more.setAttribute('aria-expanded', open);
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
    this.methods.show();
    this.system.value = request.system;
    this.showSampling();
    this.loading.show();
    this.showPanels();
  }

  showSampling() {
    const count = () => this.sampling.tally(fields.countChanged() + further.countChanged());
    const change = () => {
      count();
      this.methods.show(); // some cannot sample
      this.form.changed();
    };
    const values = this.form.request.sampling;
    const fields = fieldsOf(this.catalog.sampling, values, change);
    const further = fieldsOf(this.catalog.further, values, change);
    const open = { open: further.countChanged() > 0 };
    const more = folded('details.vl-further', W.ask.further, open, further.node);
    const system = field('vl-system', W.ask.system, this.system, W.ask.systemHelp);
    this.sampling.fill(fields.node, more, system);
    count();
  }

  /** Panels of methods that stay keep their state. */
  showPanels() {
    const { pair, settings, methods } = this.form.request;
    const on = { ask: this.ask, ontally: () => this.tally() };
    const kept = (name) =>
      this.panels.find((panel) => panel.pair === pair && panel.values === settings[name]);
    this.panels = methods.map((name) => kept(name) ?? methodPanel(this.form, name, on));
    this.settings.replaceChildren(...this.panels.map(({ node }) => node));
  }

  /** Count changed values, those of examples apart. */
  tally() {
    const examples = this.panels.flatMap((panel) => panel.example() ?? []);
    const own = this.panels.filter((panel) => !panel.example());
    const others = Object.keys(chosen(this.form.request)).length;
    const changed = own.reduce((sum, panel) => sum + panel.countChanged(), others);
    tally(this.changes, changed, examples);
  }

  showChange() {
    const { form } = this;
    const { request, next, mayFollow, fittingPair } = form;
    this.tally();
    if (this.question.value !== request.question) this.question.value = request.question;
    this.hint();
    this.followUp.checked = form.followUp;
    const chose = mayFollow && form.followUp;
    this.fresh.hidden = next !== 'on' || chose; // otherwise the list of earlier questions has it
    this.keeping.hidden = !mayFollow || next === 'same' || (next === 'on' && !chose);
    this.turnNote.classList.toggle('kept', mayFollow); // its place is there before it says anything
    put(this.scopeNote, form.scope);
    this.switch.hidden = !fittingPair;
    if (fittingPair) put(this.switch, W.scope.use(fittingPair.title));
  }

  /** Say what an empty question asks, and how the question continues the conversation. */
  hint() {
    const { last, earlier, next, request, pairFacts } = this.form;
    const { history, media, question } = request;
    const empty = !question.trim() && media.length > 0;
    const words = this.form.questionOf();
    put(this.untyped, empty ? W.ask.untyped(words) : '');
    const followed = countPictures(history) ? W.chat.followHint : W.chat.textHint;
    const first = empty ? words : pairFacts.describe.image;
    this.question.placeholder = history.length ? followed : first;
    const fresh = next === 'new' ? W.chat.fresh : '';
    const goesOn = earlier.length > 0 && !(last && next === 'same');
    put(this.goesOn, goesOn ? W.chat.on(earlier.length, countPictures(earlier)) : fresh);
    put(this.questionLabel, earlier.length ? W.chat.question : W.ask.question);
  }

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

  say(text, wrong) {
    const { running } = this.form;
    tell(this.status, text, wrong);
    this.waiting.hidden = !(running && text && !wrong); // until the first words come
    this.node.setAttribute('aria-busy', running);
  }
}
