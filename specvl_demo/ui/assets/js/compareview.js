/* A set of methods on a set of questions: which runs are asked for, the table as it grows, a scatter of speed against
   fidelity, export. A run that is stopped keeps what was done. */

import { h, put, icon, fmt } from './dom.js';
import { chosen } from './ask.js';
import { Chart } from './chart.js';
import { csv, Tally } from './compare.js';
import { term } from './explain.js';
import { PHASES } from './fold.js';
import { Race } from './race.js';
import * as trace from './trace.js';
import { W } from './words.js';

const LANES_AT_ONCE = 4;

export class CompareView {
  /** current(): the request that stands in the form, for its pair, pictures, question and settings. */
  constructor(catalog, runner, painter, api, current) {
    Object.assign(this, { catalog, runner, painter, api, current });
    this.tally = new Tally();
    this.running = false;
    this.build();
    this.draw();
  }

  build() {
    const { catalog } = this;
    this.methods = h(
      'div',
      { class: 'vl-methods', role: 'group', 'aria-label': W.compare.methods },
      catalog.methods
        .filter((m) => m.name !== 'ar' && m.name !== 'custom')
        .map((m) =>
          h(
            'label',
            { class: 'vl-method', title: m.help },
            h('input', { type: 'checkbox', value: m.name }),
            h('span', { text: m.title }),
          ),
        ),
    );
    this.useCurrent = h('input', { type: 'checkbox', id: 'vl-c-current' });
    this.useExamples = h('input', {
      type: 'checkbox',
      id: 'vl-c-examples',
      checked: catalog.examples.length > 0,
      disabled: !catalog.examples.length,
    });
    const line = (input, text, extra = null) =>
      h(
        'div',
        { class: 'vl-c-line' },
        input.type === 'checkbox' && input,
        h('label', { for: input.id, text }),
        input.type !== 'checkbox' && input,
        extra,
      );
    this.go = h(
      'button',
      { type: 'button', class: 'vl-primary', id: 'vl-c-run', on: { click: () => this.run() } },
      icon('play'),
      W.compare.run,
    );
    this.halt = h(
      'button',
      {
        type: 'button',
        class: 'vl-secondary',
        id: 'vl-c-stop',
        disabled: true,
        on: { click: () => this.stop() },
      },
      icon('stop'),
      W.ask.stop,
    );
    this.progress = h('progress', {
      max: 1,
      value: 0,
      hidden: true,
      'aria-label': W.compare.progress,
    });
    this.said = h('p', { class: 'vl-help', role: 'status' });
    this.body = h('tbody');
    this.scatter = new Chart(scatter(this), new Race(), this.painter, this.api.url('plotly'));
    this.export = h(
      'div',
      { class: 'vl-buttons' },
      h(
        'button',
        { type: 'button', class: 'vl-secondary', on: { click: () => this.saveTable() } },
        icon('save'),
        W.compare.csv,
      ),
      h(
        'button',
        { type: 'button', class: 'vl-secondary', on: { click: () => this.savePicture() } },
        icon('save'),
        W.compare.png,
      ),
    );
    this.node = h(
      'div',
      { class: 'vl-compare' },
      h(
        'section',
        { class: 'vl-card vl-c-form' },
        h('div', {}, h('h2', { text: W.compare.methods }), this.methods),
        h(
          'div',
          {},
          h('h2', { text: W.compare.inputs }),
          line(this.useCurrent, W.compare.current),
          line(this.useExamples, W.compare.examples),
          h('div', { class: 'vl-buttons' }, this.go, this.halt),
          this.progress,
          this.said,
        ),
      ),
      h(
        'section',
        { class: 'vl-card vl-c-table', tabindex: '0', 'aria-label': W.compare.table },
        h(
          'table',
          {},
          h(
            'thead',
            {},
            h(
              'tr',
              {},
              W.compare.columns.map(([text, help]) => h('th', { scope: 'col' }, term(text, help))),
            ),
          ),
          this.body,
        ),
      ),
      (this.note = h('p', { class: 'vl-help', text: W.compare.note })),
      this.scatter.node,
      this.export,
    );
  }

  /** Methods that the pair of the form serves can be chosen, the others say why not. */
  open() {
    const pair = this.catalog.pairs.find((p) => p.id === this.current().pair);
    const asked = new Set(this.current().methods);
    for (const label of this.methods.children) {
      const box = label.querySelector('input');
      const served = pair.methods[box.value];
      box.disabled = served !== true;
      label.classList.toggle('off', box.disabled);
      label.title = box.disabled ? served : label.title;
      if (!this.touched) box.checked = asked.has(box.value);
    }
    this.touched = true;
  }

  /** The examples that the pair of the form was made for. */
  get examples() {
    return this.catalog.examples.filter((e) => e.pair === this.current().pair);
  }

  get chosen() {
    return [...this.methods.querySelectorAll('input:checked:enabled')].map((box) => box.value);
  }

  /** What is asked: [{question, media}]. */
  inputs() {
    const current = this.current();
    const out = [];
    if (this.useCurrent.checked)
      out.push({ question: current.question, media: current.media, history: current.history });
    if (this.useExamples.checked)
      out.push(...this.examples.map(({ question, media }) => ({ question, media })));
    return out;
  }

  async run() {
    const names = this.chosen;
    if (!names.length) {
      this.say(W.compare.noMethod, true);
      return;
    }
    if (this.runner.busy) {
      this.say(W.run.busy, true);
      return;
    }
    this.setRunning(true);
    this.tally = new Tally();
    const inputs = this.inputs();
    const groups = Array.from({ length: Math.ceil(names.length / LANES_AT_ONCE) }, (_, i) =>
      names.slice(i * LANES_AT_ONCE, (i + 1) * LANES_AT_ONCE),
    );
    const jobs = inputs.flatMap((input) => groups.map((methods) => ({ ...input, methods })));
    if (!jobs.length) this.say(W.compare.noInput, true);
    let failed = null;
    for (let i = 0; i < jobs.length && this.running && failed === null; i += 1) {
      this.progress.value = i / jobs.length;
      failed = await this.one(jobs[i], W.compare.step(i + 1, jobs.length));
    }
    const stopped = !this.running;
    this.setRunning(false);
    if (jobs.length)
      this.say(
        failed ?? (stopped ? W.compare.stopped : W.compare.done(jobs.length)),
        failed !== null,
      );
  }

  async one(job, text) {
    const { pair, settings, system } = this.current();
    const race = new Race();
    this.say(text);
    const failed = await this.runner.run(
      { pair, settings, system, ...chosen(this.current()), ...job },
      {
        status: (what) => this.say([text, what].filter(Boolean).join(' ')),
        record: (record) => race.take(record),
      },
    );
    this.tally.take(race);
    this.draw();
    return failed;
  }

  stop() {
    this.running = false;
    this.runner.stop();
  }

  setRunning(on) {
    this.running = on;
    this.go.disabled = on;
    this.halt.disabled = !on;
    this.progress.hidden = !on;
  }

  say(text, wrong = false) {
    put(this.said, text);
    this.said.classList.toggle('wrong', wrong);
  }

  draw() {
    const rows = this.tally.table();
    this.body.replaceChildren(...rows.map((r) => this.row(r)));
    if (!rows.length)
      this.body.append(
        h(
          'tr',
          {},
          h('td', { colspan: W.compare.columns.length, class: 'vl-hint', text: W.compare.empty }),
        ),
      );
    this.export.hidden = this.scatter.node.hidden = !rows.length;
    put(
      this.note,
      rows.some((r) => r.disturbed) ? `${W.compare.unsure} ${W.compare.note}` : W.compare.note,
    );
    this.scatter.update(true);
  }

  row(r) {
    const shares = PHASES.map((p) =>
      h('i', {
        class: p.slice(0, -2),
        style: { 'flex-grow': String(r.rho[p] ?? 0) },
        title: `${W.phases[p]} ${fmt.number(r.rho[p])}`,
      }),
    );
    const total = PHASES.reduce((sum, p) => sum + (r.rho[p] ?? NaN), 0);
    const paper = this.published(r.method);
    const same =
      r.method === 'ar'
        ? W.compare.itself
        : r.same === r.races
          ? W.compare.allSame(r.races)
          : W.compare.differs(r.same, r.races, r.first, r.gap === null ? null : fmt.number(r.gap));
    return h(
      'tr',
      {},
      h(
        'th',
        { scope: 'row' },
        r.title,
        !r.lossless && h('span', { class: 'vl-badge lossy', text: W.lane.lossy }),
      ),
      h('td', { text: String(r.races) }),
      h('td', { text: fmt.number(r.tau) }),
      h('td', { text: fmt.speed(r.speed) }),
      h(
        'td',
        { class: r.disturbed ? '' : 'speedup' },
        fmt.times(r.speedup),
        r.disturbed > 0 && h('small', { text: W.compare.disturbed(r.disturbed, r.races) }),
      ),
      h(
        'td',
        {},
        h(
          'span',
          { class: 'vl-c-rho' },
          fmt.number(total),
          h('span', { class: 'vl-shares' }, shares),
          r.method !== 'ar' &&
            h('small', { text: W.compare.split(PHASES.map((p) => fmt.number(r.rho[p]))) }),
        ),
      ),
      h('td', { class: 'text', text: same }),
      h('td', { text: r.lossless ? '–' : fmt.percent(r.relaxed_share) }),
      h('td', { class: 'text paper' }, paper ? [h('b', { text: paper[0] }), ` ${paper[1]}`] : '–'),
    );
  }

  /** What the method's paper reports, with its setting: other models, machines and counting, only to be read beside ours. */
  published(method) {
    return this.catalog.methods.find((m) => m.name === method)?.learn?.published;
  }

  repaint() {
    this.scatter.repaint();
  }

  saveTable() {
    trace.download(
      'comparison.csv',
      csv(this.tally.table(), (method) => this.published(method)),
      'text/csv',
    );
  }

  savePicture() {
    window.Plotly?.downloadImage(this.scatter.plot, {
      format: 'png',
      width: 1200,
      height: 800,
      filename: 'comparison',
    });
  }
}

/** On which side of its point each name stands: names that would print over each other take turns. */
function labels(rows) {
  const turns = ['top center', 'bottom center', 'middle right', 'middle left'];
  const near = (a, b) =>
    Math.abs(a.speedup - b.speedup) < 0.35 && Math.abs(a.agreement - b.agreement) < 0.08;
  const turn = new Map();
  for (const r of rows) {
    const taken = rows.filter((o) => o !== r && turn.has(o) && near(o, r)).map((o) => turn.get(o));
    turn.set(r, turns.find((t) => !taken.includes(t)) ?? turns[0]);
  }
  return new Map(rows.map((r) => [r.method, turn.get(r)]));
}

/** Speed over fidelity, one point a method. */
function scatter(view) {
  return {
    id: 'scatter',
    title: W.compare.scatter,
    help: W.compare.scatterHelp,
    x: W.charts.times,
    y: W.compare.agreement,
    xunit: 0.5,
    hover: 'closest',
    build(_, c) {
      const rows = view.tally.table();
      if (!rows.length) return null;
      const sides = labels(rows);
      const groups = [
        [true, W.compare.lossless, 'circle', c.draft],
        [false, W.compare.relaxed, 'diamond', c.relaxed],
      ]
        .map(([lossless, name, symbol, colour]) => ({
          name,
          symbol,
          colour,
          rows: rows.filter((r) => r.lossless === lossless),
        }))
        .filter((g) => g.rows.length);
      return {
        traces: groups.map((g) => ({
          type: 'scatter',
          mode: 'markers+text',
          name: g.name,
          x: g.rows.map((r) => r.speedup),
          y: g.rows.map((r) => 100 * r.agreement),
          text: g.rows.map((r) => r.title),
          textposition: g.rows.map((r) => sides.get(r.method)),
          textfont: { size: 11, color: c.ink },
          marker: { color: g.colour, symbol: g.symbol, size: 10 },
          hoverinfo: 'text+x+y',
          cliponaxis: false,
        })),
        legend: groups.map((g) => ({ name: g.name, colour: g.colour, fill: true })),
        xmax: Math.max(...rows.map((r) => r.speedup ?? 0)) * 1.1,
        ymin: 0,
        ymax: 108,
        say: W.compare.scatterSay(
          rows.map((r) => [r.title, fmt.times(r.speedup), fmt.percent(r.agreement)]),
        ),
      };
    },
  };
}
