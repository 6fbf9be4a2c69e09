/* Compare: its form, the progress and the report of a bench (state/bench.js). */

import { benchReport } from './comparereport.js';
import { button, checkbox, filePicker, h, options, put, tell } from './dom.js';
import { COMPARE } from '../words/comparewords.js';
import { W } from '../words/words.js';

const labelled = (input, text) => h('div.vl-c-line', h('label', { for: input.id }, text), input);

/** Properties of a control that writes its value into the bench. */
const writes = (bench, id, write) => ({
  id: `vl-c-${id}`,
  input: ({ target }) => {
    write(target.value);
    bench.changed();
  },
});

/** @param {Bench} bench */
export function compareView(bench, { limits }, painter) {
  const label = W.ask.methods(limits.lanes);
  const boxes = bench.offered.map((method) => methodBox(bench, method));
  const methods = h('div.vl-methods', { role: 'group', label }, boxes);
  const papers = button(COMPARE.papers, () => bench.choosePapers());
  const about = h('p.vl-help');
  const cost = h('p.vl-help');
  const form = h(
    'section.vl-card.vl-c-form',
    h('div', h('h2', label), methods, h('div', papers)),
    h(
      'div',
      h('h2', COMPARE.inputs),
      about,
      sourceFields(bench),
      numberFields(bench, limits),
      cost,
      actionButtons(bench),
    ),
  );
  bench.on('change files report', () => {
    const told = Object.entries(bench.settings).map(([name, values]) => {
      const { title } = bench.offered.find((method) => method.name === name);
      return [title, ...Object.entries(values).flat()].join(' ');
    });
    put(about, COMPARE.about(bench.pair.title, told));
    // Compare refuses such numbers.
    put(cost, form.querySelector('[min="1"]:invalid') ? '' : COMPARE.cost(bench.estimate()));
  });
  const report = benchReport(bench, painter);
  bench.restore();
  return h('div.vl-compare', form, report);
}

function methodBox(bench, method) {
  const { name: value, title, help } = method;
  const box = checkbox((on) => bench.toggle(value, on), { value });
  const node = h('label.vl-method', { title: help }, box, h('span', title));
  bench.on('change', () => {
    box.checked = bench.methods.includes(value);
    node.hidden = !bench.supports(method); // the form of the race says why
    box.disabled = node.hidden || (bench.full && !box.checked);
  });
  return node;
}

function sourceFields(bench) {
  const choose = writes(bench, 'source', (value) => (bench.source = value));
  const source = h('select', choose, options(Object.entries(COMPARE.sources)));
  const write = writes(bench, 'question', (text) => (bench.question = text));
  const question = h('input', { type: 'text', ...write });
  const picker = (id, sign, more) => {
    const props = { id: `vl-c-${id}`, kind: 'vl-secondary', sign, ...more };
    return filePicker(COMPARE[id], (list) => bench.add(list), props);
  };
  const accept = ['.json', ...bench.endings].join(',');
  const files = picker('files', 'image', { multiple: true, accept });
  const folder = picker('folder', 'open', { webkitdirectory: true });
  const listed = h('span.vl-help');
  const clear = button(COMPARE.clear, () => bench.removeFiles(), 'vl-small', { hidden: true });
  const drop = h(
    'div.vl-c-drop',
    { hidden: true },
    h('div.vl-c-line', files, folder, listed, clear),
    labelled(question, COMPARE.question),
    h('p.vl-help', COMPARE.form),
  );
  bench.on('change', () => {
    source.value = bench.source;
    drop.hidden = bench.source !== 'files';
    question.placeholder = bench.pair.describe.image;
  });
  bench.on('files', (left) => {
    const names = bench.files.map(({ name }) => name);
    put(listed, names.length || left ? COMPARE.listed(names, left, bench.read) : '');
    clear.hidden = !names.length;
  });
  return [labelled(source, COMPARE.source), drop];
}

function numberFields(bench, limits) {
  const number = (name, max, more = { min: 1 }) => {
    const props = writes(bench, name, (value) => (bench.fields[name] = Number(value)));
    const start = { type: 'number', value: bench.fields[name], required: true };
    const input = h('input', { ...start, max, ...more, ...props });
    bench.on('change', () => {
      if (Number(input.value) !== bench.fields[name]) input.value = bench.fields[name];
    });
    return labelled(input, COMPARE.fields[name]);
  };
  return [
    number('questions', 100),
    number('repeats', 10),
    number('tokens', limits.tokens),
    number('temperature', 2, { min: 0, step: 0.1 }),
  ];
}

function actionButtons(bench) {
  const first = { id: 'vl-c-run', sign: 'play' };
  const go = button(COMPARE.run, () => bench.run(), 'vl-primary', first);
  const stop = { id: 'vl-c-stop', sign: 'stop', disabled: true };
  const halt = button(W.ask.stop, () => bench.stop(), 'vl-secondary', stop);
  const rest = { id: 'vl-c-on', sign: 'play', hidden: true };
  const onward = button(COMPARE.goOn, () => bench.goOn(), 'vl-secondary', rest);
  const progress = h('progress', { max: 1, value: 0, hidden: true, label: COMPARE.progress });
  const status = h('p.vl-help', { role: 'status' });
  bench.on('running', () => {
    const { running } = bench;
    go.disabled = running;
    halt.disabled = progress.hidden = !running;
    if (running) onward.hidden = true;
  });
  bench.on('stopping', () => (halt.disabled = true));
  bench.on('progress', (part) => (progress.value = part));
  bench.on('restored', () => (onward.hidden = !bench.unfinished));
  bench.on('say', ({ text, wrong }) => {
    tell(status, text, wrong);
    if (wrong) status.scrollIntoView({ block: 'nearest' });
  });
  return [h('div.vl-buttons', go, halt, onward), progress, status];
}
