/* The tables of a bench, and what every method answered. */

import { folded, h, headRow, tableRow, thumbnail } from './dom.js';
import { term } from './explain.js';
import { COMPARE } from '../words/comparewords.js';
import { fmt } from '../words/words.js';

/** A table under its heading; the first cell of every row names it. */
const framed = (heading, help, columns, rows) =>
  h(
    'section.vl-card.vl-c-table',
    { tabindex: '0', 'aria-label': heading },
    h('h2', { title: help }, heading),
    h(
      'table',
      headRow(columns),
      h('tbody', ...rows.map(([name, ...cells]) => tableRow(name, cells))),
    ),
  );

export function table({ heading, columns, rows }) {
  const head = columns.map((text) => term(text, COMPARE.columns[text]));
  const cells = ([name, ...texts]) => [name, ...texts.map((text) => h('td', text))];
  return framed(heading, null, head, rows.map(cells));
}

/** Speedups of methods by kind of question. open(kind, name): a cell's race is wanted. */
export function heatMap(rows, open) {
  const methods = rows.filter((row) => row.by_kind && row.name !== 'ar');
  const all = Object.keys(methods[0]?.by_kind ?? {});
  const kinds = all.length > 1 || open ? all : [];
  // The further from one, the deeper its ground.
  const cell = (row, kind) => {
    const { speedup_vs_ar: x, interval } = kind ? row.by_kind[kind] : row;
    const ground = `var(--vl-${x < 1 ? 'relaxed' : 'draft'})`;
    const share = x ? Math.min(45, 30 * Math.abs(x - 1)) : 0;
    const style = { background: `color-mix(in srgb, ${ground} ${share}%, transparent)` };
    const range = interval && h('small', interval.map((end) => end.toFixed(2)).join('–'));
    const opener = { title: COMPARE.race, click: () => open(kind, row.name) };
    const speed = fmt.times(x);
    const opens = kind && open;
    return h(
      'td',
      { style },
      opens ? h('button.vl-plainbutton', opener, speed) : speed,
      ' ',
      range,
    );
  };
  const cells = (row) => [row.method, ...['', ...kinds].map((kind) => cell(row, kind))];
  const { all: every, kinds: heading, kindsHelp } = COMPARE;
  return framed(heading, kindsHelp, ['', every, ...kinds], methods.map(cells));
}

export function answered(questions) {
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
