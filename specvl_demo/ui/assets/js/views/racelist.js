/* The list of the visitor's own races, and what opens traces from disk, below the examples. */

import { download, button, filePicker, h, put, icon, iconButton } from './dom.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** @import { Archive } from '../state/archive.js' */
/** @import { KeptRace } from '../state/types.js' */

const picture = (src) => (src ? h('img', { src, alt: '', loading: 'lazy' }) : null);

export class RaceList {
  /** show(records, meta): put a race on the page. @param {Archive} archive */
  constructor(archive, show) {
    this.archive = archive;
    this.show = show;
    const more = { id: 'vl-trace', accept: '.jsonl,.json' };
    this.input = filePicker(W.trace.open, ([file]) => archive.open(file), more);
    this.note = h('p.vl-help', { role: 'status' });
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
      this.note,
    );
    archive.on('change', () => this.draw());
    archive.on('problem', (sentence) => this.tell(sentence));
    this.draw();
  }

  async forget() {
    await this.archive.forget();
    put(this.note, W.trace.forgotten);
  }

  draw() {
    const { runs } = this.archive;
    this.list.replaceChildren(...runs.map((run) => this.line(run)));
    put(this.count, W.trace.yours(runs.length));
    this.clear.hidden = !runs.length;
  }

  /** When, what, and with which methods. @param {KeptRace} run */
  line({ records, meta, lanes, at }) {
    const time = at
      ? new Date(at).toLocaleString([], { dateStyle: 'short', timeStyle: 'short' })
      : '';
    const save = () => download('race.trace.jsonl', trace.write(records));
    return h(
      'li',
      h(
        'button.vl-run',
        { on: { click: () => this.show(records, meta) } },
        picture(trace.shown(trace.first(records))[0]?.frames[0]) ?? h('i.vl-noimage', icon('play')),
        h(
          'span',
          h('b', meta.question || W.trace.untitled),
          h('small', [time, lanes.join(', ')].filter(Boolean).join(' · ')),
        ),
      ),
      iconButton('save', W.run.saveAs.trace, save),
    );
  }

  /** Why a trace cannot be opened; '' takes that back. */
  tell(sentence) {
    put(this.note, sentence);
    this.note.classList.toggle('wrong', sentence !== '');
    if (!sentence) return;
    this.node.open = true;
    this.note.scrollIntoView({ block: 'nearest' });
  }
}
