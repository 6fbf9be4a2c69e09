/* Compare: its form, the progress and the report of a bench (state/bench.js). */

import { benchReport } from './comparereport.js';
import { button, filePicker, h, options, put, tell } from './dom.js';
import { COMPARE } from '../words/comparewords.js';
import { W } from '../words/words.js';

const labelled = (input, text, ...more) =>
  h('div.vl-c-line', h('label', { for: input.id, text }), input, more);

const methodBox = ({ name: value, title, help }) =>
  h('label.vl-method', { title: help }, h('input', { type: 'checkbox', value }), h('span', title));

export class CompareView {
  /** @param {Bench} bench */
  constructor(bench, catalog, painter, plotlyUrl) {
    this.bench = bench;
    this.limits = catalog.limits;
    const report = benchReport(bench, painter, plotlyUrl);
    this.node = h('div.vl-compare', this.buildForm(), report);
    bench.on('change', () => this.show());
    bench.on('files', (left) => this.showFiles(left));
    bench.on('running', () => this.showRunning());
    bench.on('stopping', () => (this.halt.disabled = true));
    bench.on('progress', (part) => (this.progress.value = part));
    bench.on('restored', () => (this.onward.hidden = !bench.unfinished));
    bench.on('say', ({ text, wrong }) => tell(this.status, text, wrong));
    bench.restore();
  }

  buildForm() {
    const { bench } = this;
    const title = W.ask.methods(this.limits.lanes);
    const group = { role: 'group', label: title };
    this.methods = h('div.vl-methods', group, bench.offered.map(methodBox));
    const papers = button(COMPARE.papers, () => bench.choosePapers());
    this.about = h('p.vl-help');
    this.cost = h('p.vl-help');
    const asked = [h('h2', COMPARE.inputs), this.about, this.buildSource(), this.buildNumbers()];
    return h(
      'section.vl-card.vl-c-form',
      { input: () => this.takeControls() },
      h('div', h('h2', title), this.methods, h('div', papers)),
      h('div', asked.flat(), this.cost, this.buildActions()),
    );
  }

  buildSource() {
    const { bench } = this;
    this.source = h('select', { id: 'vl-c-source' }, options(Object.entries(COMPARE.sources)));
    const files = (id, label, more) =>
      filePicker(label, (list) => bench.add(list), { id: `vl-c-${id}`, hidden: true, ...more });
    const accept = ['.json', ...bench.endings].join(',');
    const picker = files('files', COMPARE.files, { multiple: true, accept });
    const folder = files('folder', COMPARE.folder, { webkitdirectory: true });
    const opener = (sign, text, input) =>
      button(text, () => input.click(), 'vl-secondary', { sign });
    this.listed = h('span.vl-help');
    this.clear = button(COMPARE.clear, () => bench.removeFiles(), 'vl-small', { hidden: true });
    this.question = h('input', { type: 'text', id: 'vl-c-question' });
    const openers = [
      opener('image', COMPARE.files, picker),
      opener('open', COMPARE.folder, folder),
    ];
    this.drop = h(
      'div.vl-c-drop',
      { hidden: true },
      h('div.vl-c-line', openers, this.listed, this.clear),
      labelled(this.question, COMPARE.question),
      h('p.vl-help', COMPARE.form),
      picker,
      folder,
    );
    return [labelled(this.source, COMPARE.source), this.drop];
  }

  buildNumbers() {
    const { fields } = this.bench;
    const number = (name, max, more = { min: 1 }) =>
      h('input', { type: 'number', id: `vl-c-${name}`, value: fields[name], max, ...more });
    this.fields = {
      questions: number('questions', 100),
      repeats: number('repeats', 10),
      tokens: number('tokens', this.limits.tokens),
      temperature: number('temperature', 2, { min: 0, step: 0.1 }),
    };
    return Object.entries(this.fields).map(([name, input]) =>
      labelled(input, COMPARE.fields[name]),
    );
  }

  buildActions() {
    const { bench } = this;
    const go = { id: 'vl-c-run', sign: 'play' };
    const halt = { id: 'vl-c-stop', sign: 'stop', disabled: true };
    const onward = { id: 'vl-c-on', sign: 'play', hidden: true };
    this.go = button(COMPARE.run, () => bench.run(), 'vl-primary', go);
    this.halt = button(W.ask.stop, () => bench.stop(), 'vl-secondary', halt);
    this.onward = button(COMPARE.goOn, () => bench.goOn(), 'vl-secondary', onward);
    const bar = { max: 1, value: 0, hidden: true, label: COMPARE.progress };
    this.progress = h('progress', bar);
    this.status = h('p.vl-help', { role: 'status' });
    return [h('div.vl-buttons', this.go, this.halt, this.onward), this.progress, this.status];
  }

  takeControls() {
    const { bench } = this;
    for (const box of this.methods.querySelectorAll('input')) bench.toggle(box.value, box.checked);
    for (const [name, input] of Object.entries(this.fields))
      bench.fields[name] = Number(input.value);
    bench.source = this.source.value;
    bench.question = this.question.value;
    bench.changed();
  }

  show() {
    const { bench } = this;
    const { offered, pair } = bench;
    this.question.placeholder = pair.describe.image;
    [...this.methods.children].forEach((label, i) => {
      const box = label.querySelector('input');
      box.checked = bench.methods.includes(box.value);
      label.hidden = !bench.supports(offered[i]); // the form of the race says why
      box.disabled = label.hidden || (bench.full && !box.checked);
    });
    for (const [name, input] of Object.entries(this.fields))
      if (Number(input.value) !== bench.fields[name]) input.value = bench.fields[name];
    this.source.value = bench.source;
    this.drop.hidden = bench.source !== 'files';
    const { answers, tokens, seconds, load } = bench.estimate();
    put(this.about, COMPARE.about(pair.title));
    put(this.cost, COMPARE.cost(answers, tokens, seconds, load));
  }

  takeDropped(files) {
    this.bench.source = 'files';
    this.bench.emit('change');
    this.bench.add(files);
  }

  /** left: how many files were left out. */
  showFiles(left) {
    const names = this.bench.files.map(({ name }) => name);
    put(this.listed, names.length || left ? COMPARE.listed(names, left, this.bench.read) : '');
    this.show();
    this.clear.hidden = !names.length;
  }

  showRunning() {
    const { running } = this.bench;
    this.go.disabled = running;
    this.halt.disabled = !running;
    this.progress.hidden = !running;
    if (running) this.onward.hidden = true;
  }
}
