/* What the chosen pair cannot judge: its model `knows` 'anything', 'photographs' or drawn 'scenes', and the words
   that it was taught. */

import { pairOf } from './request.js';
import { W } from '../words/words.js';

/** @import { Catalog, Media, Request } from './types.js' */

const LETTERS = /\p{L}{3,}/gu;
const MOST_UNKNOWN = 3;
const LONGEST_WORD = 40; // letters
const MOST_WORDS = 60; // the shipped models were taught short questions

/** What the pair cannot judge about a request, in a sentence. @param {Catalog} catalog @param {Request} request */
export function scope(catalog, request) {
  const pair = pairOf(catalog, request.pair);
  if (!pair || pair.knows === 'anything') return '';
  const media = [...request.media, ...request.history.flatMap((turn) => turn.media)];
  if (!media.length) return `${W.scope.noPicture[pair.knows]} ${W.scope.after}`;
  const outside = request.media.filter(
    (item) =>
      kind(item, catalog) !== pair.knows &&
      (pair.knows === 'scenes' || kind(item, catalog) !== null),
  );
  if (outside.length)
    return `${W.scope.other[pair.knows](outside.map(({ name }) => name))} ${
      outside.every((item) => kind(item, catalog) === null) ? W.scope.then : W.scope.after
    }`;
  const long = request.question.match(/\S+/g)?.length ?? 0;
  if (long > MOST_WORDS) return `${W.scope.long(long)} ${W.scope.after}`;
  const words = pair.words && new Set(pair.words);
  const unknown = words
    ? [...new Set(request.question.match(LETTERS) ?? [])].filter(
        (word) => !knows(words, word.toLowerCase()),
      )
    : [];
  const named = unknown.slice(0, MOST_UNKNOWN).map((word) => word.slice(0, LONGEST_WORD));
  return named.length ? `${W.scope.words(named)} ${W.scope.after}` : '';
}

/** Another pair here that can. @param {Catalog} catalog @param {Request} request */
export function better(catalog, request) {
  const pair = pairOf(catalog, request.pair);
  if (!pair || pair.knows === 'anything') return undefined;
  const other = pair.knows === 'scenes' ? 'photographs' : 'scenes';
  const { media, history } = request;
  const bare = !media.length && !history.some((turn) => turn.media.length);
  const fits = media.length
    ? media.every((item) => kind(item, catalog) !== pair.knows)
    : bare && other === 'photographs';
  return fits ? catalog.pairs.find((p) => p.available && p.knows === other) : undefined;
}

/** What a file is known to show. @param {Media} item @param {Catalog} catalog */
function kind(item, catalog) {
  const example = catalog.examples.find((e) => e.id === item.example);
  return (example && pairOf(catalog, example.pair)?.knows) ?? null;
}

/** Whether a word, or its singular, is one of these. @param {Set<string>} words @param {string} word */
const knows = (words, word) => words.has(word) || words.has(word.replace(/s$/, ''));
