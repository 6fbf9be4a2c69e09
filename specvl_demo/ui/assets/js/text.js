/* Words that may be a stranger's, made fit for what reads them. Knows nothing of the page. */

const MOST_LETTERS = 200;

/** A token's piece of text as the page lays it out and compares it: a trace may hold tokens of any length, and marks
 *  piled up on one letter, which a browser needs minutes for. */
export function laid(text) {
  const few = text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}…` : text;
  return few.replace(/(\p{M}{4})\p{M}+/gu, '$1');
}

/** Words for Plotly, which reads tags in all that it writes, links too. */
export const plain = (words) =>
  typeof words === 'string' ? words.replaceAll('&', '&amp;').replaceAll('<', '&lt;') : words;
