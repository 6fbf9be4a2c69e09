/* A bench: methods on many questions, asked one after the other, each a separate run in the
   server's line. The server keeps the answers and folds them; this file has the form, the
   progress, its tables, charts and answers. A stopped bench keeps what was done. */

import { download, button, filePicker, h, put, icon, headRow } from './dom.js';
import { chosen, unsampled } from '../state/request.js';
import { Chart } from './chart.js';
import { DASHES, flat, line } from './charts.js';
import { coloursOf } from '../state/colours.js';
import { COMPARE } from '../words/comparewords.js';
import { term } from './explain.js';
import * as kept from '../state/keep.js';
import { Race } from '../state/race.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

const FRESH_MS = 2000; // so old a table may be while the bench runs
const WAIT_MS = 300; // until we look again whether a race of this page is over

export class CompareView {
  /** current(): the form's request, for its pair, pictures, question and settings. */
  constructor(catalog, runner, painter, api, current) {
    this.catalog = catalog;
    this.runner = runner;
    this.painter = painter;
    this.api = api;
    this.current = current;
    this.running = false;
    this.files = [];
    this.report = null;
    this.greedy = []; // titles of what is not defined for sampling, and left out
    this.raced = {}; // by pair, the pace of the last race on this page, and what other programs left it of the machine
    this.free = 1; // what they left the last race of all
    this.build();
    this.draw();
    this.restore();
  }

  build() {
    const { catalog } = this;
    this.methods = h(
      'div.vl-methods',
      { role: 'group', 'aria-label': W.ask.methods(catalog.limits.lanes) },
      catalog.methods
        .filter((m) => m.name !== 'ar' && m.name !== 'custom')
        .map((m) =>
          h(
            'label.vl-method',
            { title: m.help },
            h('input', { type: 'checkbox', value: m.name }),
            h('span', m.title),
          ),
        ),
    );
    this.source = h(
      'select',
      { id: 'vl-c-source', on: { change: () => this.turned() } },
      Object.entries(COMPARE.sources).map(([value, text]) => h('option', { value, text })),
    );
    const files = (id, label, more) =>
      filePicker(label, (list) => this.add(list), { id: `vl-c-${id}`, hidden: true, ...more });
    const { picture_types: pictures, clip_types: clips } = catalog.limits;
    const accept = ['.jsonl', ...pictures, ...clips].join(',');
    this.picker = files('files', COMPARE.files, { multiple: true, accept });
    this.folder = files('folder', COMPARE.folder, { webkitdirectory: true });
    const opener = (sign, text, input) =>
      h('button.vl-secondary', { on: { click: () => input.click() } }, icon(sign), text);
    this.listed = h('span.vl-help');
    this.clear = button(COMPARE.clear, () => this.without(), 'vl-small', { hidden: true });
    this.question = h('input', {
      type: 'text',
      id: 'vl-c-question',
      placeholder: COMPARE.describe,
    });
    const number = (id, value, max, more = { min: 1 }) =>
      h('input', { type: 'number', id: `vl-c-${id}`, value, max, ...more });
    this.fields = {
      questions: number('questions', 10, 100),
      repeats: number('repeats', 3, 10),
      tokens: number('tokens', 64, catalog.limits.tokens),
      temperature: number('temperature', 0, 2, { min: 0, step: 0.1 }),
    };
    const row = (input, text, ...more) =>
      h('div.vl-c-line', h('label', { for: input.id, text }), input, more);
    this.drop = h(
      'div.vl-c-drop',
      h(
        'div.vl-c-line',
        opener('image', COMPARE.files, this.picker),
        opener('open', COMPARE.folder, this.folder),
        this.listed,
        this.clear,
      ),
      row(this.question, COMPARE.question),
      h('p.vl-help', COMPARE.form),
      this.picker,
      this.folder,
    );
    const act = (id, kind, sign, text, click, more = {}) =>
      h('button', { class: kind, id, ...more, on: { click } }, icon(sign), text);
    this.go = act('vl-c-run', 'vl-primary', 'play', COMPARE.run, () => this.run());
    this.halt = act('vl-c-stop', 'vl-secondary', 'stop', W.ask.stop, () => this.stop(), {
      disabled: true,
    });
    const onward = () => {
      this.setRunning(true);
      this.follow();
    };
    this.goOn = act('vl-c-on', 'vl-secondary', 'play', COMPARE.goOn, onward, { hidden: true });
    this.progress = h('progress', {
      max: 1,
      value: 0,
      hidden: true,
      'aria-label': COMPARE.progress,
    });
    this.said = h('p.vl-help', { role: 'status' });
    const chart = (spec) => new Chart(spec(this), new Race(), this.painter, this.api.url('plotly'));
    this.charts = [speeds, depths, kinds].map(chart);
    this.tables = h('div');
    const more = h('summary', icon('chevron'), COMPARE.more);
    this.more = h('details.vl-card.vl-c-more', more, this.tables);
    this.answers = h('div.vl-stack');
    this.about = h('p.vl-help');
    this.cost = h('p.vl-help');
    this.notes = h('div.vl-help');
    this.export = h(
      'div.vl-buttons',
      act('vl-c-save', 'vl-secondary', 'save', COMPARE.save, () => this.save()),
    );
    const changed = () => {
      this.estimate();
      this.keep();
    };
    this.node = h(
      'div.vl-compare',
      h(
        'section.vl-card.vl-c-form',
        { on: { input: changed } },
        h('div', h('h2', W.ask.methods(catalog.limits.lanes)), this.methods),
        h(
          'div',
          h('h2', COMPARE.inputs),
          this.about,
          row(this.source, COMPARE.source),
          this.drop,
          Object.entries(this.fields).map(([name, input]) => row(input, COMPARE.fields[name])),
          this.cost,
          h('div.vl-buttons', this.go, this.halt, this.goOn),
          this.progress,
          this.said,
        ),
      ),
      (this.origin = h('div.vl-help')),
      (this.first = h('div')),
      h(
        'div.vl-c-charts',
        this.charts.map(({ node }) => node),
      ),
      this.more,
      this.answers,
      this.notes,
      this.export,
    );
    this.turned();
  }

  /** Methods that the form's pair supports can be chosen; the others show the reason. */
  open() {
    const pair = this.catalog.pairs.find((p) => p.id === this.current().pair);
    const asked = new Set(this.current().methods);
    for (const label of this.methods.children) {
      const box = label.querySelector('input');
      label.hidden = pair.methods[box.value] !== true; // the form of the race says why
      if (!this.touched) box.checked = asked.has(box.value);
    }
    this.touched = true;
    put(this.about, COMPARE.about(pair.title));
    this.estimate();
  }

  /** A race on this page is over: it tells how fast this machine is today, and how busy now. */
  learn({ list, meta }) {
    const lanes = list.filter((lane) => lane.tokens.length);
    const free = Math.max(0.01, 1 - Math.max(0, ...list.map((lane) => lane.end.load ?? 0)));
    this.free = free;
    const before = lanes.map(({ begin: b }) => b.vision_s + b.prefill_s + b.draft_prefill_s);
    const token = lanes.map((lane) => lane.at(Infinity).clock_s / lane.tokens.length);
    this.raced[meta.asked.pair] = { before: middle(before), token: middle(token), free };
  }

  /** How many answers are asked for, and the time that they take on the machine as busy as it was last found, if all are
   *  as long as they may be. No more methods than can race can be ticked. */
  estimate() {
    const { questions, repeats, tokens } = this.fields;
    const raced = this.raced[this.current().pair];
    const { chosen } = this;
    for (const label of this.methods.children) {
      const box = label.querySelector('input');
      const full = chosen.length >= this.catalog.limits.lanes && !box.checked;
      box.disabled = label.hidden || full;
    }
    const asked = this.source.value === 'form' ? 1 : Number(questions.value);
    const answers = asked * Number(repeats.value) * (1 + chosen.length);
    const each = raced && raced.before + Number(tokens.value) * raced.token;
    const seconds = raced && (answers * each * raced.free) / this.free;
    put(this.cost, COMPARE.cost(answers, Number(tokens.value), seconds, 1 - this.free));
  }

  turned() {
    this.drop.hidden = this.source.value !== 'files';
  }

  /** What was dropped on this view: questions, pictures, folders of them. */
  async take(event) {
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.());
    const given = [...event.dataTransfer.files];
    const found = await Promise.all(
      given.map((file, i) => (entries[i]?.isDirectory ? within(entries[i]) : [file])),
    );
    this.source.value = 'files';
    this.turned();
    this.add(found.flat());
  }

  /** Files for the bench: one of questions, the others pictures and clips; what is neither is left out. */
  add(files) {
    const endings = this.picker.accept.split(',');
    const fits = ({ name }) => endings.some((ending) => name.toLowerCase().endsWith(ending));
    const taken = files.filter(fits);
    this.files.push(...taken);
    this.tellFiles(files.length - taken.length);
  }

  without() {
    this.files = [];
    this.tellFiles(0);
  }

  tellFiles(left) {
    const names = this.files.map(({ name }) => name);
    put(this.listed, names.length || left ? COMPARE.listed(names, left) : '');
    this.clear.hidden = !names.length;
  }

  /** The request: {lines, name, files} as the server reads them; empty for the pair's own
   *  questions. */
  async asked() {
    const line = (question, media, id) => ({ id, question, media: media.map((m) => m.path) });
    const named = (media) => media.map((m) => ({ ...m, name: m.path }));
    const lines = (rows) => rows.map((row) => JSON.stringify(row)).join('\n');
    const { question, media } = this.current();
    if (this.source.value === 'form')
      return { lines: lines([line(question || COMPARE.describe, media)]), files: named(media) };
    if (this.source.value === 'examples') {
      const found = this.catalog.examples.filter((e) => e.pair === this.current().pair);
      const rows = found.map((e) => line(e.question || COMPARE.describe, e.media, e.id));
      const all = named(found.flatMap((e) => e.media));
      return {
        lines: lines(rows),
        files: all.filter((m, i) => all.findIndex((o) => o.path === m.path) === i),
      };
    }
    if (this.source.value !== 'files') return {};
    const written = this.files.find((file) => /\.jsonl?$/i.test(file.name));
    const sent = [];
    for (const file of this.files.filter((one) => one !== written)) {
      const { path } = await this.api.upload(file);
      sent.push({ path, name: file.name });
    }
    const asks = this.question.value || COMPARE.describe;
    const rows = sent.map(({ name }) => ({ id: name, question: asks, media: [name] }));
    return {
      lines: written ? await written.text() : lines(rows),
      name: written?.name ?? 'questions.jsonl',
      files: sent,
    };
  }

  get chosen() {
    const on = this.methods.querySelectorAll('label:not([hidden]) input:checked');
    return [...on].map((box) => box.value);
  }

  async run() {
    const { pair, settings, system, question, media } = this.current();
    const { questions, repeats, tokens, temperature } = this.fields;
    const all = { methods: this.chosen, settings };
    const left = unsampled(this.catalog, all, temperature.value);
    const methods = all.methods.filter((name) => !left.some((method) => method.name === name));
    this.greedy = left.map(({ title }) => title);
    const nothing = {
      files: !this.files.length && COMPARE.noFile,
      form: !question.trim() && !media.length && COMPARE.noQuestion,
    }[this.source.value];
    if (!methods.length || nothing) {
      const none = left.length ? W.ask.greedy(this.greedy) : COMPARE.noMethod;
      this.say(methods.length ? nothing : none, true);
      return;
    }
    this.setRunning(true);
    this.say(COMPARE.sending);
    const asked = await this.asked().catch(() => null);
    const made = asked && {
      ...{ pair, settings, system, ...chosen(this.current()), ...asked, methods },
      ...{ questions: Number(questions.value), repeats: Number(repeats.value) },
      ...{ max_new_tokens: Number(tokens.value), temperature: Number(temperature.value) },
    };
    const begun = made && (await this.api.server.start_bench(made).catch(() => null));
    if (!begun?.bench) {
      this.setRunning(false);
      this.say(begun?.problem ?? (await this.runner.reason(COMPARE.notSent)), true);
      return;
    }
    this.bench = begun.bench;
    this.report = null;
    this.draw();
    this.keep();
    await this.follow(begun);
  }

  /** Ask for one question after the other until the bench is done, is stopped, or cannot go on. */
  async follow(size = this.report) {
    const { total } = size;
    let done = this.report?.done ?? 0;
    const first = done;
    const began = Date.now();
    let failed = null;
    for (let told = 0; this.running && failed === null && done < total;) {
      const left = done > first ? ((Date.now() - began) / (done - first)) * (total - done) : null;
      this.progress.value = done / total;
      const text = COMPARE.asking(done, size, left && left / 1000);
      this.say(text);
      while (this.runner.busy && this.running) await new Promise((ok) => setTimeout(ok, WAIT_MS));
      if (!this.running) break;
      failed = await this.runner.run(
        { bench: this.bench },
        {
          status: (what) =>
            this.running &&
            // A question tells no stage after its pictures are opened.
            this.say([text, what !== W.run.stage.media && what].filter(Boolean).join(' ')),
          record: () => {},
        },
      );
      if (failed === null && this.running) done += 1;
      if (Date.now() - told > FRESH_MS) {
        await this.refresh();
        told = Date.now();
      }
    }
    await this.refresh();
    this.setRunning(false);
    const over = (this.report?.done ?? 0) >= total;
    this.goOn.hidden = over || !this.report;
    const ended = this.report?.done ? COMPARE.stopped : COMPARE.stoppedEmpty;
    this.say(failed ?? (over ? COMPARE.done(size) : ended), failed !== null);
  }

  async refresh() {
    const told = await this.api.server.bench_progress(this.bench).catch(() => null);
    if (!told?.rows) return;
    const colours = coloursOf(told.rows.map(({ name }) => name));
    told.rows.forEach((row, i) => (row.colour = colours[i]));
    this.report = told;
    this.draw();
  }

  /** End it with what is computed now; until that is over, no other one can begin. */
  stop() {
    this.running = false;
    this.halt.disabled = true;
    this.say(COMPARE.stopping);
    if (this.runner.request?.bench) this.runner.stop(); // a race that it waits for goes on
  }

  /** Keep the form, and which bench it began, for a reload of this tab. */
  keep() {
    const { bench, running: left, source, chosen: methods } = this;
    const fields = Object.entries(this.fields).map(([name, { value }]) => [name, value]);
    kept.keepBench({ bench, left, source: source.value, methods, fields });
  }

  /** The form as this tab left it, with what the server has of its bench. */
  async restore() {
    const { bench, left, source, methods, fields } = kept.bench() ?? {};
    if (!fields) return;
    this.source.value = source;
    this.turned();
    for (const [name, value] of fields) this.fields[name].value = value;
    for (const box of this.methods.querySelectorAll('input'))
      box.checked = methods.includes(box.value);
    this.touched = true;
    this.bench = bench;
    if (bench) await this.refresh();
    this.goOn.hidden = !this.report || this.report.done >= this.report.total;
    if (left) this.say(COMPARE.left(Boolean(this.report)), true);
  }

  setRunning(on) {
    this.running = on;
    this.go.disabled = on;
    this.halt.disabled = !on;
    this.progress.hidden = !on;
    if (on) this.goOn.hidden = true;
    this.keep();
  }

  say(text, wrong = false) {
    put(this.said, text);
    this.said.classList.toggle('wrong', wrong);
  }

  draw() {
    const told = this.report;
    const some = Boolean(told?.rows.length);
    const [first, ...others] = (some ? told.tables : []).map(table);
    this.first.replaceChildren(...[first].filter(Boolean));
    this.tables.replaceChildren(...others);
    this.more.hidden = !others.length;
    const answers = some && told.answers.length > 0;
    const clips = this.catalog.limits.clip_types;
    this.answers.replaceChildren(...(answers ? [answered(told.answers, clips)] : []));
    const said = (texts) => texts.map((text) => h('p', { text }));
    const without = this.greedy.length ? [W.ask.greedy(this.greedy)] : [];
    this.origin.replaceChildren(...said(some ? [...told.before, ...without] : [COMPARE.empty]));
    const notes = some ? told.after : [];
    const steps = notes.some((text) => text.includes('AR steps')) ? [COMPARE.step] : [];
    this.notes.replaceChildren(...said([...notes, ...steps]));
    this.export.hidden = !some;
    for (const chart of this.charts) {
      chart.node.hidden = !some || !chart.spec.wanted(told.rows);
      if (!chart.node.hidden) chart.update(true);
    }
  }

  repaint() {
    this.charts.forEach((chart) => chart.repaint());
  }

  /** Tables and traces as one archive, made by the server. */
  async save() {
    const made = await this.api.server.bench_archive(this.bench).catch(() => null);
    const file = made?.url && (await fetch(new URL(made.url, document.baseURI)).catch(() => null));
    if (file?.ok) download('bench.zip', await file.blob(), 'application/zip');
    else this.say(made?.problem ?? (await this.runner.reason(COMPARE.notSaved)), true);
  }
}

const middle = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];

/** The files of a dropped folder, those of its own folders too. */
async function within(folder) {
  const reader = folder.createReader();
  const entries = [];
  for (let some = [null]; some.length;) {
    some = await new Promise((ok, failed) => reader.readEntries(ok, failed)); // a hundred at most
    entries.push(...some);
  }
  const file = (entry) => new Promise((ok, failed) => entry.file(ok, failed));
  return (
    await Promise.all(entries.map((entry) => (entry.isDirectory ? within(entry) : file(entry))))
  ).flat();
}

const table = ({ heading, columns, rows }) =>
  h(
    'section.vl-card.vl-c-table',
    { tabindex: '0', 'aria-label': heading },
    h('h2', heading),
    h(
      'table',
      headRow(columns.map((text) => term(text, COMPARE.columns[text]))),
      h(
        'tbody',
        rows.map(([first, ...cells]) =>
          h(
            'tr',
            h('th', { scope: 'row', text: first }),
            cells.map((text) => h('td', { text })),
          ),
        ),
      ),
    ),
  );

/** A picture or a clip of a question, small. */
const small = ({ url: src, name }, clips) => {
  const clip = clips.some((ending) => name.toLowerCase().endsWith(ending));
  return h(clip ? 'video' : 'img', { src, alt: name, title: name, preload: 'metadata' });
};

/** What every method answered, question by question. */
const answered = (all, clips) =>
  h(
    'section.vl-card.vl-c-answers',
    h('h2', COMPARE.answers),
    all.map(({ question, media, reference, answers, cut }) =>
      h(
        'details',
        h(
          'summary',
          icon('chevron'),
          media.map((file) => small(file, clips)),
          question || COMPARE.describe,
        ),
        reference && h('p.vl-help', COMPARE.reference(reference)),
        h(
          'dl',
          Object.entries(answers).flatMap(([title, text]) => [
            h('dt', title),
            h('dd', text, cut[title] && h('small.vl-help', COMPARE.cut(cut[title]))),
          ]),
        ),
      ),
    ),
  );

const drafting = (rows) => rows.filter((row) => row.name !== 'ar');
/** Lines, or points of kinds that have no order, over a common axis, one a row. */
function lines(c, found, { mode = 'lines+markers', ...more }) {
  const drawn = found.map(({ number, ...more }) => ({
    ...more,
    colour: c.lanes[number],
    dash: DASHES[Math.max(0, number - 1)],
  }));
  const points = mode === 'markers' ? 'point' : null;
  return {
    traces: drawn.map(({ name, x, y, colour, dash }) =>
      flat(x, y, {
        name,
        mode,
        line: { color: colour, dash, width: 2 },
        marker: { color: colour, size: 9 },
      }),
    ),
    legend: drawn.map(({ name, colour, dash }) => ({ name, colour, dash: points ?? dash })),
    say: drawn
      .map(({ name, y }) => `${name}: ${y.map((v) => fmt.number(v)).join(', ')}`)
      .join('; '),
    ...more,
  };
}

/** Speedup of every method with its interval. */
function speeds(view) {
  return {
    id: 'bench-speed',
    title: COMPARE.speeds,
    help: COMPARE.speedsHelp,
    x: W.charts.times,
    y: '',
    xunit: 0.5,
    hover: 'closest',
    wanted: (rows) => drafting(rows).some((r) => r.speedup_vs_ar !== null),
    build(_, c) {
      const rows = drafting(view.report?.rows ?? []).filter((r) => r.speedup_vs_ar !== null);
      if (!rows.length) return null;
      const x = rows.map((r) => r.speedup_vs_ar);
      const reach = (side) => rows.map((r, i) => Math.abs((r.interval?.[side] ?? x[i]) - x[i]));
      return {
        traces: [
          {
            type: 'scatter',
            mode: 'markers',
            name: COMPARE.speeds,
            x,
            y: rows.map((_row, i) => i),
            text: rows.map((r) => r.method),
            hoverinfo: 'text+x',
            marker: { color: rows.map((r) => c.lanes[r.colour]), size: 9 },
            error_x: { type: 'data', array: reach(1), arrayminus: reach(0), color: c.muted },
          },
        ],
        ylabels: rows.map((r) => r.method),
        xmax: Math.max(1, ...rows.map((r, i) => r.interval?.[1] ?? x[i])) * 1.05,
        ymin: rows.length - 0.5,
        ymax: -0.5,
        shapes: [{ ...line(0, c.muted), xref: 'x', yref: 'paper', x0: 1, x1: 1, y0: 0, y1: 1 }],
        say: rows.map((r, i) => `${r.method} ${fmt.times(x[i])}`).join(', '),
      };
    },
  };
}

/** How often a drafted position is accepted, by its depth; positions that were not drafted do not
 *  count. */
function depths(view) {
  return {
    id: 'bench-depth',
    title: W.charts.byDepth,
    help: W.charts.byDepthHelp,
    x: W.charts.depth,
    y: W.charts.percent,
    xunit: 1,
    whole: true,
    wanted: (rows) => rows.some((r) => r.accepted_by_depth?.length),
    build(_, c) {
      const rows = (view.report?.rows ?? []).filter((r) => r.accepted_by_depth?.length);
      const found = rows.map((r) => ({
        name: r.method,
        number: r.colour,
        x: r.accepted_by_depth.map((_share, i) => i + 1),
        y: r.accepted_by_depth.map((share) => 100 * share),
      }));
      const deepest = Math.max(1, ...found.map(({ x }) => x.length));
      return lines(c, found, { xmin: 0.8, xmax: deepest, xend: deepest + 0.2, ymax: 104 });
    },
  };
}

/** Speedup by kind of question. */
function kinds(view) {
  const names = (rows) => Object.keys(rows[0]?.by_kind ?? {});
  return {
    id: 'bench-kind',
    title: COMPARE.kinds,
    help: COMPARE.kindsHelp,
    x: COMPARE.kind,
    y: W.charts.times,
    wanted: (rows) =>
      names(rows).length > 1 && drafting(rows).some((r) => r.speedup_vs_ar !== null),
    build(_, c) {
      const rows = drafting(view.report?.rows ?? []);
      const all = names(rows);
      const found = rows.map((r) => ({
        name: r.method,
        number: r.colour,
        x: all.map((_kind, i) => i),
        y: all.map((kind) => r.by_kind[kind].speedup_vs_ar),
      }));
      const top = Math.max(1.5, ...found.flatMap(({ y }) => y.map((v) => v ?? 0)));
      const ends = { xmin: -0.3, xmax: all.length, xend: all.length - 0.7 };
      const shapes = [line(1, c.muted)];
      const mode = 'markers';
      return lines(c, found, { ...ends, mode, ymax: top * 1.1, xlabels: all, shapes });
    },
  };
}
