/* The visitor's own races and traces from disk, below the examples. */

import { download, button, filePicker, h, put, icon, iconButton } from './dom.js';
import * as kept from '../state/keep.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

const picture = (src) => (src ? h('img', { src, alt: '', loading: 'lazy' }) : null);

export class Races {
  /** show(records, meta): put a race on the page. compared(file): how the lanes of a trace compare,
   *  or its {problem}. */
  constructor(show, compared) {
    this.show = show;
    this.compared = compared;
    this.runs = [];
    const more = { id: 'vl-trace', accept: '.jsonl,.json' };
    this.input = filePicker(W.trace.open, ([file]) => this.open(file), more);
    this.said = h('p.vl-help', { role: 'status' });
    this.list = h('ul.vl-runs');
    this.clear = button(W.trace.forget, () => this.forget());
    const open = button(W.trace.open, () => this.input.click(), 'vl-small', {
      title: W.trace.drop,
    });
    this.node = h(
      'details.vl-mine',
      h('summary', icon('chevron'), (this.count = h('span'))),
      this.list,
      h('div.vl-buttons', open, this.clear),
      this.input,
      this.said,
    );
    this.draw();
  }

  /** Keep a finished race so that it can be shown again, in a later visit too. */
  keep(race) {
    const { shown, ...meta } = race.meta; // the pictures are in the records
    const lanes = race.list.map((lane) => lane.begin.title);
    const run = { records: trace.recordsOf(race), meta, lanes, at: Date.now() };
    kept.keepRun(run);
    this.runs.unshift(run);
    this.draw();
  }

  /** The races of earlier visits. */
  async load() {
    this.runs = await kept.runs();
    this.draw();
  }

  async forget() {
    await kept.forget();
    this.runs = [];
    this.draw();
    put(this.said, W.trace.forgotten);
  }

  draw() {
    this.list.replaceChildren(...this.runs.map((run) => this.line(run)));
    put(this.count, W.trace.yours(this.runs.length));
    this.clear.hidden = !this.runs.length;
  }

  /** When, what, and with which methods. */
  line({ records, meta, lanes, at }) {
    const style = { dateStyle: 'short', timeStyle: 'short' };
    const time = at ? new Date(at).toLocaleString([], style) : '';
    const save = () => download('race.trace.jsonl', trace.write(records));
    return h(
      'li',
      h(
        'button.vl-run',
        { on: { click: () => this.show(records, meta) } },
        picture(trace.shown(records[0])[0]?.frames[0]) ?? h('i.vl-noimage', icon('play')),
        h(
          'span',
          h('b', meta.question || W.trace.untitled),
          h('small', [time, lanes.join(', ')].filter(Boolean).join(' · ')),
        ),
      ),
      iconButton('save', W.run.saveAs.trace, save),
    );
  }

  /** A trace from the visitor's disk; what is wrong with it is said with its line. */
  async open(file) {
    if (!file) return;
    this.said.classList.remove('wrong');
    put(this.said, '');
    const compared = await this.compared(file);
    if (compared.problem) {
      this.wrong(file.name, compared.problem);
      return;
    }
    const records = trace.parse(await file.text());
    const { notes, device: machine } = records.find((r) => r.kind === 'begin');
    const told = { source: 'recorded', question: notes.question || file.name, machine };
    this.show(records, { ...told, file: file.name, compared });
  }

  wrong(name, sentence) {
    this.node.open = true;
    put(this.said, W.trace.wrong(name, sentence));
    this.said.classList.add('wrong');
    this.said.scrollIntoView({ block: 'nearest' });
  }
}
