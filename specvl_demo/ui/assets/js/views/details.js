/* How the inspector shows what is told of a token: bars, tables, seconds. */

import { h, headRow } from './dom.js';
import { PHASES } from '../records/fold.js';
import { W, fmt } from '../words/words.js';

/** A probability as a width. */
const percent = (p) => `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%`;

/** A probability as a bar with its name. */
const bar = (name, p) =>
  h(
    'div.vl-draw',
    h('span', name),
    h('i', h('b', { style: { width: percent(p) } })),
    h('span', fmt.prob(p)),
  );

/** Bars for the probabilities that are known, and a sentence; null where none is. */
export function bars({ target, drafter }, sentence = '') {
  const names = [
    [W.views.target, target],
    [W.inspect.drafter, drafter],
  ];
  const drawn = names.filter(([, p]) => p !== null).map(([name, p]) => bar(name, p));
  return drawn.length ? h('div.vl-draws', drawn, sentence && h('p.vl-help', sentence)) : null;
}

/** A probability in a cell; a dot if it is unknown. */
const cell = (p) =>
  h(
    'td',
    p !== undefined && h('i', { style: { width: percent(p) } }),
    h('span', p === undefined ? '·' : fmt.prob(p)),
  );

/** The table of likely tokens. id: of the token that is inspected; word(row): how one is shown. */
export function candidates({ columns, rows }, id, word) {
  /** A likely token with its probabilities. */
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

/** What a round's phases took. */
export function times(round) {
  /** What one phase took. */
  const part = (phase) => {
    const sign = h('i', { class: `phase ${phase.slice(0, -2)}` });
    return h('span', sign, `${W.phases[phase]} ${fmt.seconds(round[phase])}`);
  };
  return h('p.vl-times', { title: W.track.whereHelp }, PHASES.map(part));
}

/** What a round's notes say, as a list; null if there are none. */
export function notes(rows) {
  if (!rows.length) return null;
  /** A note's name, value and reason. */
  const line = ([name, value, why]) => [h('dt', name), h('dd', value, why && ` (${why})`)];
  return h('dl.vl-notes', rows.flatMap(line));
}
