/* The tables of a bench, and what every method answered. */

import { folded, h, headRow } from './dom.js';
import { term } from './explain.js';
import { COMPARE } from '../words/comparewords.js';
import { fmt } from '../words/words.js';

/** A table with its heading; rows of cells, of which the first names the row. */
const framed = (heading, help, columns, rows) =>
  h(
    'section.vl-card.vl-c-table',
    { tabindex: '0', 'aria-label': heading },
    h('h2', { title: help }, heading),
    h(
      'table',
      headRow(columns),
      h(
        'tbody',
        rows.map(([name, ...cells]) => h('tr', h('th', { scope: 'row' }, name), cells)),
      ),
    ),
  );

/** A table of the report. */
export function table({ heading, columns, rows }) {
  const head = columns.map((text) => term(text, COMPARE.columns[text]));
  /** A row's name, and its texts as cells. */
  const line = ([name, ...cells]) => [name, ...cells.map((text) => h('td', text))];
  return framed(heading, null, head, rows.map(line));
}

/** Speedups of methods by kind of question; a cell opens its race. @param {any[]} rows
 *  @param {(kind: string, name: string) => void} [open] */
export function heatMap(rows, open) {
  const methods = rows.filter((row) => row.by_kind && row.name !== 'ar');
  const all = Object.keys(methods[0]?.by_kind ?? {});
  const kinds = all.length > 1 || open ? all : [];
  /** A method's speedup over one kind, or over all; the further from one, the deeper its ground. */
  const cell = (row, kind) => {
    const { speedup_vs_ar: x, interval } = kind ? row.by_kind[kind] : row;
    const ground = `var(--vl-${x < 1 ? 'relaxed' : 'draft'})`;
    const share = x ? Math.min(45, 30 * Math.abs(x - 1)) : 0;
    const range = interval && h('small', interval.map((end) => end.toFixed(2)).join('–'));
    const style = { background: `color-mix(in srgb, ${ground} ${share}%, transparent)` };
    const button = { title: COMPARE.race, on: { click: () => open(kind, row.name) } };
    const shown = kind && open ? h('button.vl-plainbutton', button, fmt.times(x)) : fmt.times(x);
    return h('td', { style }, shown, ' ', range);
  };
  /** A method's speedups: over all, then kind by kind. */
  const line = (row) => [row.method, ...['', ...kinds].map((kind) => cell(row, kind))];
  const { all: every, kinds: heading, kindsHelp } = COMPARE;
  return framed(heading, kindsHelp, ['', every, ...kinds], methods.map(line));
}

/** A picture or a clip of a question, small. */
const small = ({ url: src, name, kind }) =>
  h(kind === 'video' ? kind : 'img', { src, alt: name, title: name, preload: 'metadata' });

/** What every method answered, question by question. */
export function answered(all) {
  const answer =
    (cut) =>
    ([title, text]) => [
      h('dt', title),
      h('dd', text, cut[title] && h('small.vl-help', COMPARE.cut(cut[title]))),
    ];
  /** A question, under which every method's answer is folded away. */
  const one = ({ question, media, reference, answers, cut }) =>
    folded(
      'details',
      [...media.map(small), question],
      reference && h('p.vl-help', COMPARE.reference(reference)),
      h('dl', Object.entries(answers).flatMap(answer(cut))),
    );
  return h('section.vl-card.vl-c-answers', h('h2', COMPARE.answers), all.map(one));
}
