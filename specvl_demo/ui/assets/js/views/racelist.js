/* The visitor's own races, and what opens traces from disk, below the examples. */

import {
  button,
  download,
  filePicker,
  folded,
  h,
  icon,
  iconButton,
  put,
  tell,
  thumbnail,
} from './dom.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

export class RaceList {
  /** show(records, meta): put a race on the page. @param {Archive} archive */
  constructor(archive, show) {
    this.archive = archive;
    this.show = show;
    const more = { id: 'vl-trace', accept: '.jsonl,.json' };
    this.input = filePicker(W.trace.open, ([file]) => archive.open(file), more);
    this.note = h('p.vl-help', { role: 'status' });
    this.list = h('ul.vl-runs');
    const forget = () => archive.forget().then(() => put(this.note, W.trace.forgotten));
    this.clear = button(W.trace.forget, forget);
    const hint = { title: W.trace.drop };
    const open = button(W.trace.open, () => this.input.click(), 'vl-small', hint);
    this.count = h('span');
    const parts = [this.list, h('div.vl-buttons', open, this.clear), this.input, this.note];
    this.node = folded('details.vl-mine', this.count, ...parts);
    archive.on('change', () => this.draw());
    archive.on('problem', (sentence) => this.showProblem(sentence));
    this.draw();
  }

  draw() {
    const { runs } = this.archive;
    this.list.replaceChildren(...runs.map((run) => this.line(run)));
    put(this.count, W.trace.yours(runs.length));
    this.clear.hidden = !runs.length;
  }

  line({ records, meta, lanes, at }) {
    const time = new Date(at).toLocaleString([], { dateStyle: 'short', timeStyle: 'short' });
    const what = h('b', meta.question || W.trace.untitled);
    const words = h('span', what, h('small', `${time} · ${lanes.join(', ')}`));
    const url = trace.shown(trace.first(records))[0]?.frames[0];
    const picture = url ? thumbnail({ url }, { loading: 'lazy' }) : h('i.vl-noimage', icon('play'));
    const save = () => download('race.trace.jsonl', trace.write(records));
    return h(
      'li',
      h('button.vl-run', { click: () => this.show(records, meta) }, picture, words),
      iconButton('save', W.run.saveAs.trace, save),
    );
  }

  /** '' takes the last one back. */
  showProblem(sentence) {
    tell(this.note, sentence, sentence !== '');
    if (!sentence) return;
    this.node.open = true;
    this.note.scrollIntoView({ block: 'nearest' });
  }
}
