/* The form (state/form.js): pictures, the question, pair, methods and their parameters. */

import { button, checkbox, folded, h, icon, options, put, tell } from './dom.js';
import { loadingPanel } from './loading.js';
import { mediaWell } from './media.js';
import { methodList } from './methodlist.js';
import { methodPanel } from './methodpanel.js';
import { field, fieldsOf, panelOf, tally } from './settings.js';
import { tiles } from './tiles.js';
import { exampleLike, ownSettings } from '../state/examples.js';
import { chosen } from '../state/request.js';
import { W } from '../words/words.js';

const countPictures = (turns) => turns.reduce((sum, turn) => sum + turn.media.length, 0);

/** ask(asked): a method's parameters from the server. @param {Form} form */
export function formView(form, ask, races) {
  const well = mediaWell(form.files);
  const question = questionField(form);
  const loading = loadingPanel(form);
  const methods = methodList(form);
  const sampling = samplingPanel(form, methods.show);
  const parameters = parametersPanel(form, ask, [sampling, loading.node]);
  const { catalog } = form;
  const examples = tiles(catalog, (example) => form.choose(example));
  const offered = h('div.vl-field', h('span.vl-label', W.ask.examples), examples);
  const submit = (e) => {
    e.preventDefault();
    form.run();
  };
  const unfold = (want, first = question.input) => {
    const open = node.classList.toggle('open', want);
    more.ariaExpanded = open;
    if (!open) return;
    first.focus({ preventScroll: true });
    // Only when it is laid out: until then the browser holds what is in sight where it is.
    requestAnimationFrame(() => well.scrollIntoView({ block: 'start' }));
  };
  // Not to the question: a keyboard would rise.
  const showPictures = () => unfold(undefined, well.querySelector('.vl-tool'));
  const folds = { 'aria-expanded': 'false', sign: 'image' };
  const more = button(W.ask.more, showPictures, 'vl-secondary vl-more', folds);
  const node = h(
    'form.vl-ask',
    { label: W.ask.title, submit, input: () => form.settle() },
    h('div.vl-ask-rest', well, question.node, methods.node),
    footOf(form, more, methods.note),
    h('div.vl-ask-start', catalog.examples.length > 0 && offered, races),
    h('div.vl-ask-rest', pairChoice(form), parameters),
  );
  const { input } = question;
  form.on('say', () => (node.ariaBusy = form.running));
  // Where it is folded away, it opens.
  form.on('focus', () => (more.offsetParent ? unfold(true) : input.focus()));
  form.on('answered', () => {
    if (document.activeElement === input) input.select(); // the next one replaces it
  });
  return { node, loading, unfold };
}

/** Run and Stop. A focus that would be lost with what vanishes goes to the one that can be pressed. */
function footOf(form, more, note) {
  const word = h('span', W.ask.run);
  const go = h('button.vl-primary', { type: 'submit', id: 'vl-run' }, icon('play'), word);
  const stop = { id: 'vl-stop', disabled: true, sign: 'stop' };
  const halt = button(W.ask.stop, () => form.emit('stop'), 'vl-secondary', stop);
  const waiting = h('progress.vl-waiting', { hidden: true, label: W.ask.waiting });
  const status = h('p.vl-status', { id: 'vl-status' }); // the stage says the same aloud
  form.on('running', () => {
    const { running } = form;
    const [off, on] = running ? [go, halt] : [halt, go];
    const had = /** @type {HTMLElement} */ (document.activeElement);
    const lost = had === off || (foot.parentNode.contains(had) && !had.offsetParent); // or folded away
    off.disabled = true;
    on.disabled = false;
    if (lost) on.focus({ preventScroll: true });
    put(word, running ? W.ask.runningNow : W.ask.run);
  });
  form.on('say', ({ text, wrong }) => {
    tell(status, text, wrong);
    waiting.hidden = !(form.running && text && !wrong); // until the first words come
  });
  const foot = h('div.vl-ask-foot', waiting, h('div.vl-buttons', more, go, halt), status, note);
  return foot;
}

function textarea(form, key, more = {}) {
  const input = ({ target }) => form.type(key, target.value);
  return h('textarea', { id: `vl-${key}`, rows: 2, input, ...more });
}

function questionField(form) {
  const keydown = (e) => {
    if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    form.run();
  };
  const input = textarea(form, 'question', { keydown });
  const label = h('label', { for: 'vl-question' }, W.ask.question);
  const keys = h('span.vl-help.vl-keys', { role: 'status' }); // one line, so that nothing moves
  form.on('change turns', () => {
    const { history, media, question } = form.request;
    if (input.value !== question) input.value = question;
    const empty = !question.trim() && media.length > 0;
    put(keys, empty ? W.ask.untyped : W.ask.keys);
    keys.classList.toggle('vl-keys', !empty);
    const followed = countPictures(history) ? W.chat.followHint : W.chat.textHint;
    const first = empty ? form.questionOf() : form.pairFacts.describe.image;
    input.placeholder = history.length ? followed : first;
    put(label, form.earlier.length ? W.chat.question : W.ask.question);
  });
  const line = h('div.vl-line', label, keys);
  return { input, node: h('div.vl-field', line, input, followLine(form)) };
}

/** Whether the question goes on from the last one. */
function followLine(form) {
  const says = h('span');
  const follow = (on) => {
    form.followUp = on;
    form.changed();
  };
  const box = checkbox(follow);
  const keeping = h('label', box, W.chat.keepOn);
  const anew = button(W.chat.clear, () => form.emit('fresh'));
  const node = h('div.vl-help.vl-turn', { role: 'status' }, says, anew, keeping);
  form.on('change turns', () => {
    const { earlier, followUp, last, mayFollow, next } = form;
    const chose = mayFollow && followUp;
    box.checked = followUp;
    anew.hidden = next !== 'on' || chose; // otherwise the list of earlier questions has it
    keeping.hidden = !mayFollow || next === 'same' || (next === 'on' && !chose);
    node.classList.toggle('kept', mayFollow); // its place is there before it says anything
    const fresh = next === 'new' ? W.chat.fresh : '';
    const goesOn = earlier.length > 0 && !(last && next === 'same');
    put(says, goesOn ? W.chat.on(earlier.length, countPictures(earlier)) : fresh);
  });
  return node;
}

function pairChoice(form) {
  const { pairs } = form.catalog;
  const larger = pairs.filter(({ available }) => !available);
  const here = pairs.filter(({ available }) => available);
  const titles = here.map(({ id, title }) => [id, title]);
  const change = () => form.changePair(menu.value);
  const menu = h('select', { id: 'vl-pair', change }, options(titles));
  const note = h('p.vl-help');
  const scope = h('p.vl-scope', { role: 'status' });
  const turn = () => form.changePair(form.fittingPair.id);
  const fitting = button('', turn, 'vl-small vl-switch', { hidden: true });
  const show = () => {
    const { fittingPair, pairFacts, request } = form;
    menu.value = request.pair;
    put(note, pairFacts.available ? pairFacts.help : pairFacts.reason);
    put(scope, form.scope);
    fitting.hidden = !fittingPair;
    if (fittingPair) put(fitting, W.scope.use(fittingPair.title));
  };
  form.on('change', show);
  form.on('scope', () => (scope.hidden = !form.scopeShown));
  show();
  const reasons = larger.flatMap(({ title, reason }) => [h('dt', title), h('dd', reason)]);
  const help = h('p.vl-help', W.ask.elsewhereHelp);
  const list = h('dl.vl-elsewhere', reasons);
  const elsewhere = folded('details.vl-others', W.ask.elsewhere(larger.length), help, list);
  const label = h('label', { for: 'vl-pair' }, W.ask.pair);
  return h('div.vl-field', label, menu, note, scope, fitting, larger.length > 0 && elsewhere);
}

function samplingPanel(form, onchange) {
  const system = textarea(form, 'system');
  const panel = panelOf(W.ask.sampling, () => form.restore({ sampling: {}, system: '' }));
  const show = () => {
    const { further, sampling } = form.catalog;
    const { sampling: values, system: text } = form.request;
    const change = () => {
      panel.tally(values);
      onchange();
      form.changed();
    };
    const fields = (params) => fieldsOf(params, values, change);
    const open = further.some(({ key }) => key in values);
    const more = folded('details.vl-further', W.ask.further, { open }, fields(further));
    system.value = text;
    panel.fill(fields(sampling), more, field('vl-system', W.ask.system, system, W.ask.systemHelp));
    panel.tally(values);
  };
  form.on('update', show);
  show();
  return panel.node;
}

function parametersPanel(form, ask, others) {
  const changes = h('span.vl-changed');
  const methods = h('div.vl-settings');
  let panels = [];
  const count = () => {
    const { request } = form;
    const own = ownSettings(form);
    const changed = [chosen(request), ...request.methods.map((name) => own[name] ?? {})];
    const examples = request.methods.flatMap((name) => exampleLike(form, name) ?? []);
    tally(changes, changed.flatMap(Object.keys).length, examples);
  };
  const show = () => {
    const { pair, settings, methods: names } = form.request;
    const kept = (name) =>
      panels.find((panel) => panel.pair === pair && panel.values === settings[name]);
    panels = names.map((name) => kept(name) ?? methodPanel(form, name, ask, count));
    methods.replaceChildren(...panels.map(({ node }) => node));
  };
  form.on('update', show);
  form.on('change', count);
  show();
  const heading = [h('span', W.ask.parameters), changes];
  return folded('details.vl-parameters', heading, methods, ...others);
}
