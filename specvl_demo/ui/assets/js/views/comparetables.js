/* The tables of a bench, and what every method answered. */

import { h, headRow, icon } from './dom.js';
import { term } from './explain.js';
import { COMPARE } from '../words/comparewords.js';
import { fmt } from '../words/numbers.js';

/** A table with its heading. */
export const table = ({ heading, columns, rows }) =>
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

/** Speedups of methods by kind of question as a heat map, with intervals; a cell of a kind opens its race.
 *  @param {any[]} rows @param {(kind: string, name: string) => void} [open] */
export function heatMap(rows, open) {
  const methods = rows.filter((row) => row.by_kind && row.name !== 'ar');
  const all = Object.keys(methods[0]?.by_kind ?? {});
  const kinds = all.length > 1 || open ? all : [];
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
  const line = (row) =>
    h(
      'tr',
      h('th', { scope: 'row', text: row.method }),
      ['', ...kinds].map((k) => cell(row, k)),
    );
  return h(
    'section.vl-card.vl-c-table',
    { tabindex: '0', 'aria-label': COMPARE.kinds },
    h('h2', { title: COMPARE.kindsHelp }, COMPARE.kinds),
    h('table', headRow(['', COMPARE.all, ...kinds]), h('tbody', methods.map(line))),
  );
}

/** A picture or a clip of a question, small. */
const small = ({ url: src, name }, clips) => {
  const clip = clips.some((ending) => name.toLowerCase().endsWith(ending));
  return h(clip ? 'video' : 'img', { src, alt: name, title: name, preload: 'metadata' });
};

/** What every method answered, question by question. */
export const answered = (all, clips) =>
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
          question,
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
