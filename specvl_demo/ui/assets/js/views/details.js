/* How the inspector shows what is told of a token: bars, tables, seconds. */

import { h, headRow } from './dom.js';
import { PHASES } from '../records/fold.js';
import { W, fmt } from '../words/words.js';

const percent = (p) => `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%`;

const bar = (name, p) =>
  h(
    'div.vl-draw',
    h('span', name),
    h('i', h('b', { style: { width: percent(p) } })),
    h('span', fmt.prob(p)),
  );

/** Those that are known, and a sentence; null where none is. */
export function bars({ target, drafter }, sentence = '') {
  const names = [
    [W.views.target, target],
    [W.inspect.drafter, drafter],
  ];
  const drawn = names.filter(([, p]) => p !== null).map(([name, p]) => bar(name, p));
  return drawn.length ? h('div.vl-draws', drawn, sentence && h('p.vl-help', sentence)) : null;
}

/** A dot if it is unknown. */
const cell = (p) =>
  h(
    'td',
    p !== undefined && h('i', { style: { width: percent(p) } }),
    h('span', p === undefined ? '·' : fmt.prob(p)),
  );

/** id: of the token that is inspected; word(row): how one is shown. */
export function candidates({ columns, rows }, id, word) {
  const line = (row) =>
    h(
      'tr',
      { class: row.id === id ? 'chosen' : null },
      h('th', { scope: 'row' }, word(row)),
      columns.map((column) => cell(row.prob.get(column))),
    );
  const head = headRow([
    W.inspect.candidate,
    ...columns.map((column) => W.views[column] ?? column),
  ]);
  const caption = h('caption.vl-hidden', W.inspect.candidates);
  return h('table.vl-candidates', caption, head, h('tbody', rows.map(line)));
}

export function times(round) {
  const part = (phase) => {
    const sign = h('i', { class: `phase ${phase.slice(0, -2)}` });
    return h('span', sign, `${W.phases[phase]} ${fmt.seconds(round[phase])}`);
  };
  return h('p.vl-times', { title: W.track.whereHelp }, PHASES.map(part));
}

export function notes(rows) {
  if (!rows.length) return null;
  const line = ([name, value, why]) => [h('dt', name), h('dd', value, why && ` (${why})`)];
  return h('dl.vl-notes', rows.flatMap(line));
}
