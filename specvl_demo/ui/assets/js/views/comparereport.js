/* What a bench found: its tables, its chart, what every method answered. */

import { Chart } from './chart.js';
import { benchByDepth } from './charts.js';
import { busily, button, folded, h, headRow, refill, tableRow, term, thumbnail } from './dom.js';
import { Race } from '../state/race.js';
import { pairOf } from '../state/request.js';
import { COMPARE } from '../words/comparewords.js';
import { W, fmt } from '../words/words.js';

const FEW = 100; // tokens, from which a speedup says little

/** @param {Bench} bench */
export function benchReport(bench, painter) {
  const chart = new Chart(benchByDepth(bench), new Race(), painter);
  const others = h('div');
  const more = folded('details.vl-card.vl-c-more', COMPARE.more, others);
  const save = (as, text, click) =>
    button(text, click, 'vl-secondary', { id: `vl-c-${as}`, sign: 'save' });
  const rows = save(
    'save',
    COMPARE.save,
    busily(() => bench.save()),
  );
  const figure = (as) => save(as, COMPARE.figure[as], () => bench.saveFigure(as));
  const figures = h('div.vl-buttons', ['svg', 'pdf'].map(figure));
  const node = h('div.vl-stack');
  const draw = () => {
    const { left, id, report } = bench;
    if (!report?.rows.length) {
      refill(node, [told([COMPARE.empty])]);
      return;
    }
    const [first, ...further] = report.tables.map(table);
    refill(others, further);
    const open = (id || report.asked) && ((kind, name) => bench.openRace(kind, name));
    const without = left.length ? [W.ask.greedy(left)] : [];
    const { pair } = report.settings;
    const { title = pair } = pairOf(bench.parts.catalog, pair) ?? {};
    const heading = id ? null : h('h2', COMPARE.recorded(report.machine, title));
    const charted = report.rows.some((row) => row.accepted_by_depth?.length);
    refill(node, [
      told([...report.before, ...without], heading),
      first,
      ...(report.figure ? [heatMap(report.rows, bench, open), figures] : []),
      charted && chart.node,
      further.length > 0 && more,
      report.answers.length > 0 && answersOf(report.answers),
      told([...report.after, COMPARE.step]),
      h('div.vl-buttons', rows),
    ]);
    chart.update(true);
  };
  bench.on('report', draw);
  draw();
  return node;
}

const told = (texts, heading) => h('div.vl-help', heading, ...texts.map((text) => h('p', text)));

/** The first cell of every row names it. */
function tableCard(heading, columns, rows) {
  const lines = rows.map(([name, ...cells]) => tableRow(name, cells));
  const parts = [h('h2', heading), h('table', headRow(columns), h('tbody', lines))];
  return h('section.vl-card.vl-c-table', { tabindex: '0', label: heading }, parts);
}

function table({ heading, columns, rows }) {
  const head = columns.map((text) => term(text, COMPARE.columns[text]));
  const cells = ([name, ...texts]) => [name, ...texts.map((text) => h('td', text))];
  return tableCard(heading, head, rows.map(cells));
}

/** Speedups by kind of question. open(kind, name): a cell's race is wanted. */
function heatMap(rows, bench, open) {
  const methods = rows.filter((row) => row.by_kind && row.name !== 'ar');
  const all = Object.keys(methods[0]?.by_kind ?? {});
  const kinds = all.length > 1 || open ? all : [];
  // The further from one, the deeper its ground.
  const cell = (row, kind) => {
    const { speedup_vs_ar: x, interval, tokens } = kind ? row.by_kind[kind] : row;
    const ground = `var(--vl-${x < 1 ? 'relaxed' : 'draft'})`;
    const share = x ? Math.min(45, 30 * Math.abs(x - 1)) : 0;
    const style = { background: `color-mix(in srgb, ${ground} ${share}%, transparent)` };
    const range = interval && h('small', interval.map((end) => end.toFixed(2)).join('–'));
    const raced = () => bench.id || bench.like(kind, row.name).example;
    const title = kind && open && (raced() ? COMPARE.race : COMPARE.ask);
    const opener = { title, click: busily(() => open(kind, row.name)) };
    const speed = fmt.times(x);
    const words = kind && open ? h('button.vl-plainbutton', opener, speed) : speed;
    const few = tokens < FEW && { class: 'vl-help', title: COMPARE.few(tokens, FEW) };
    return h('td', { style, ...few }, words, ' ', range);
  };
  const cells = (row) => [row.method, ...['', ...kinds].map((kind) => cell(row, kind))];
  const head = (kind) => [kind, ' ', h('small', COMPARE.basis(methods[0].by_kind[kind]))];
  const heads = ['', COMPARE.all(kinds), ...kinds.map(head)];
  return tableCard(COMPARE.kinds, heads, methods.map(cells));
}

function answersOf(questions) {
  const answer = (title, text, cut) => [
    h('dt', title),
    h('dd', text, cut && h('small.vl-help', COMPARE.cut(cut))),
  ];
  const question = ({ question: text, media, reference, answers, cut }) =>
    folded(
      'details',
      [...media.map((one) => thumbnail(one, { title: one.name })), text],
      reference && h('p.vl-help', COMPARE.reference(reference)),
      h('dl', ...Object.entries(answers).map(([title, words]) => answer(title, words, cut[title]))),
    );
  return h('section.vl-card.vl-c-answers', h('h2', COMPARE.answers), questions.map(question));
}
