/* The tables of a bench, and what every method answered. */

import { h, headRow, icon } from './dom.js';
import { term } from './explain.js';
import { COMPARE } from '../words/comparewords.js';

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
