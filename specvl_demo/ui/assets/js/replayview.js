/* Races that were recorded: traces dropped or chosen, the shipped ones, and the runs of this visit. Works without any
   model: a trace is read in the browser. */

import { button, filePicker, h, put, icon, iconButton } from './dom.js';
import * as kept from './keep.js';
import { thumbnails } from './tiles.js';
import * as trace from './trace.js';
import { W } from './words.js';

const picture = (src) => (src ? h('img', { src, alt: '', loading: 'lazy' }) : null);

export class ReplayView {
  /** show(records, meta): put a race on the page. choose(example): fill the form from it and show its race. */
  constructor(catalog, show, choose) {
    Object.assign(this, { catalog, show });
    this.runs = [];
    const more = { id: 'vl-trace', accept: '.jsonl,.json' };
    this.input = filePicker(W.trace.open, ([file]) => this.open(file), more);
    this.said = h('p.vl-help', { role: 'status' });
    this.mine = h('ul.vl-runs');
    this.clear = button(W.trace.forget, () => this.forget());
    const recorded = catalog.examples.filter((e) => e.trace);
    this.node = h(
      'div.vl-replay',
      h(
        'section.vl-card.vl-drop',
        h('p', W.trace.drop),
        h(
          'button.vl-secondary',
          { on: { click: () => this.input.click() } },
          icon('open'),
          W.trace.open,
        ),
        this.input,
        this.said,
      ),
      h(
        'section',
        h('h2', W.trace.recorded),
        recorded.length
          ? h(
              'ul.vl-runs',
              recorded.map((e) => this.line(e.title, e.why, () => choose(e), thumbnails(e)[0])),
            )
          : h('p.vl-hint', W.trace.none),
      ),
      h('section', h('h2', W.trace.yours), this.mine, this.clear),
    );
    this.list();
  }

  line(title, note, fn, thumb, extra = null) {
    return h(
      'li',
      h(
        'button.vl-run',
        { on: { click: fn } },
        thumb ?? h('i.vl-noimage', icon('play')),
        h('span', h('b', title), h('small', note)),
      ),
      extra,
    );
  }

  /** Keep a finished race so that it can be shown again, in a later visit too. */
  keep(race) {
    const { shown, ...meta } = race.meta; // the pictures are in the records
    const run = {
      records: trace.recordsOf(race),
      meta,
      lanes: race.list.map((lane) => lane.begin.title),
    };
    kept.keepRun(run);
    this.runs.unshift(run);
    this.list();
  }

  /** The races of earlier visits. */
  async load() {
    this.runs = await kept.runs();
    this.list();
  }

  async forget() {
    await kept.forget();
    this.runs = [];
    this.list();
    put(this.said, W.trace.forgotten);
  }

  list() {
    this.mine.replaceChildren(
      ...this.runs.map((run) =>
        this.line(
          run.meta.question || W.trace.untitled,
          run.lanes.join(', '),
          () => this.show(run.records, run.meta),
          picture(trace.shown(run.records[0])[0]?.frames[0]),
          iconButton('save', W.run.save, () =>
            trace.download('race.trace.jsonl', trace.write(run.records)),
          ),
        ),
      ),
    );
    this.clear.hidden = !this.runs.length;
    if (!this.runs.length) this.mine.replaceChildren(h('li.vl-hint', W.trace.noneYet));
  }

  /** A trace from the visitor's disk; what is wrong with it is said with its line. */
  async open(file) {
    if (!file) return;
    this.said.classList.remove('wrong');
    put(this.said, '');
    if (file.size > trace.MOST_BYTES) {
      this.wrong(file.name, W.trace.tooLarge);
      return;
    }
    let records;
    try {
      records = trace.parse(await file.text());
    } catch (fault) {
      this.wrong(file.name, fault.message);
      return;
    }
    const begin = records.find((r) => r.kind === 'begin');
    this.show(records, {
      source: 'recorded',
      question: begin.notes.question || file.name,
      machine: begin.device,
      file: file.name,
    });
  }

  wrong(name, sentence) {
    put(this.said, `${name}: ${sentence}`);
    this.said.classList.add('wrong');
  }
}
