/* Races that were recorded: traces dropped or chosen, the shipped ones, and the runs of this visit. Works without any
   model and without the server: a trace is read in the browser. */

import { h, put, icon } from './dom.js';
import * as trace from './trace.js';
import { W } from './words.js';

const MOST_RUNS = 12;

const picture = (src) => (src ? h('img', { src, alt: '', loading: 'lazy' }) : null);

/** What an example shows: its first picture, or the beginning of its clip. */
const thumbnail = ({ thumbs, media }) => picture(thumbs[0])
  ?? (media[0] ? h('video', { src: media[0].url, muted: true, playsinline: true, preload: 'metadata' }) : null);

export class ReplayView {
  /** show(records, meta): put a race on the page. */
  constructor(catalog, show) {
    Object.assign(this, { catalog, show });
    this.runs = [];
    this.input = h('input', { type: 'file', accept: '.jsonl,.json', class: 'vl-hidden', tabindex: '-1', id: 'vl-trace', 'aria-label': W.trace.open,
      on: { change: () => { this.open(this.input.files[0]); this.input.value = ''; } } });
    this.said = h('p', { class: 'vl-help', role: 'status' });
    this.mine = h('ul', { class: 'vl-runs' });
    const recorded = catalog.examples.filter((e) => e.trace);
    this.node = h('div', { class: 'vl-replay' },
      h('section', { class: 'vl-card vl-drop' }, h('p', { text: W.trace.drop }),
        h('button', { type: 'button', class: 'vl-secondary', on: { click: () => this.input.click() } }, icon('open'), W.trace.open), this.input, this.said),
      h('section', {}, h('h2', { text: W.trace.recorded }), recorded.length
        ? h('ul', { class: 'vl-runs' }, recorded.map((e) => this.line(e.title, e.why, () => this.fetch(e), thumbnail(e))))
        : h('p', { class: 'vl-hint', text: W.trace.none })),
      h('section', {}, h('h2', { text: W.trace.yours }), this.mine));
    this.list();
  }

  line(title, note, fn, thumb, extra = null) {
    return h('li', {}, h('button', { type: 'button', class: 'vl-run', on: { click: fn } },
      thumb ?? h('i', { class: 'vl-noimage' }, icon('play')),
      h('span', {}, h('b', { text: title }), h('small', { text: note }))), extra);
  }

  /** Keep a finished run so that it can be shown again. */
  keep(race) {
    this.runs.unshift({ records: trace.recordsOf(race), meta: { ...race.meta }, lanes: race.list.map((lane) => lane.begin.title) });
    this.runs.length = Math.min(this.runs.length, MOST_RUNS);
    this.list();
  }

  list() {
    this.mine.replaceChildren(...this.runs.map((run) => this.line(run.meta.question || W.trace.untitled, run.lanes.join(', '),
      () => this.show(run.records, run.meta), picture(run.meta.shown?.[0]?.frames[0]),
      h('button', { type: 'button', class: 'vl-tool', 'aria-label': W.run.save, title: W.run.save,
        on: { click: () => trace.download('race.trace.jsonl', trace.write(run.records)) } }, icon('save')))));
    if (!this.runs.length) this.mine.replaceChildren(h('li', { class: 'vl-hint', text: W.trace.noneYet }));
  }

  async fetch(example) {
    try {
      this.show(await trace.fetched(example.trace), { source: 'recorded', question: example.question, machine: example.machine });
    } catch (fault) {
      this.wrong(example.title, fault.message);
    }
  }

  /** A trace from the visitor's disk; what is wrong with it is said with its line. */
  async open(file) {
    if (!file) return;
    this.said.classList.remove('wrong');
    put(this.said, '');
    if (file.size > trace.MOST_BYTES) { this.wrong(file.name, W.trace.tooLarge); return; }
    let records;
    try {
      records = trace.parse(await file.text());
    } catch (fault) {
      this.wrong(file.name, fault.message);
      return;
    }
    const begin = records.find((r) => r.kind === 'begin');
    this.show(records, { source: 'recorded', question: String(begin.notes.question ?? file.name), machine: String(begin.device ?? '') });
  }

  wrong(name, sentence) {
    put(this.said, `${name}: ${sentence}`);
    this.said.classList.add('wrong');
  }
}
