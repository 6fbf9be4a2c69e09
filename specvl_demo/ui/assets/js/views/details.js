/* How the inspector shows what is told of a token: bars, tables, seconds. */

import { h, headRow, tableRow } from './dom.js';
import { PHASES } from '../records/fold.js';
import { W, fmt } from '../words/words.js';

const width = (p) => ({ style: { width: `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%` } });

/** A bar for each probability that is known, and a sentence; null where none is. */
export function probabilityBars({ target, drafter }, sentence = '') {
  const bar = ([name, p]) =>
    h('div.vl-draw', h('span', name), h('i', h('b', width(p))), h('span', fmt.prob(p)));
  const known = [
    [W.views.target, target],
    [W.inspect.drafter, drafter],
  ].filter(([, p]) => p !== null);
  return known.length
    ? h('div.vl-draws', known.map(bar), sentence && h('p.vl-help', sentence))
    : null;
}

/** The table of likely tokens. id: of the token that is inspected; word(row): how one is shown. */
export function candidateTable({ columns, rows }, id, word) {
  const cell = (p) =>
    p === undefined ? h('td', h('span', '·')) : h('td', h('i', width(p)), h('span', fmt.prob(p)));
  const line = (row) => {
    const cells = columns.map((column) => cell(row.prob.get(column)));
    return tableRow(word(row), cells, { class: row.id === id ? 'chosen' : null });
  };
  const views = columns.map((column) => W.views[column] ?? column);
  const caption = h('caption.vl-hidden', W.inspect.candidates);
  const head = headRow([W.inspect.candidate, ...views]);
  return h('table.vl-candidates', caption, head, h('tbody', rows.map(line)));
}

/** The seconds of a round's phases. */
export function phaseTimes(round) {
  const time = (phase) => {
    const sign = h('i', { class: `phase ${phase.slice(0, -2)}` });
    return h('span', sign, `${W.phases[phase]} ${fmt.seconds(round[phase])}`);
  };
  return h('p.vl-times', { title: W.track.whereHelp }, PHASES.map(time));
}

/** A round's notes, each [name, value, reason], as a list; null if there are none. */
export function noteList(notes) {
  const line = ([name, value, why]) => [h('dt', name), h('dd', value, why && ` (${why})`)];
  return notes.length ? h('dl.vl-notes', notes.flatMap(line)) : null;
}
