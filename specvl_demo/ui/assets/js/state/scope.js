/* What a pair cannot judge: its model `knows` 'anything', 'photographs' or drawn 'scenes', and some words. */

import { pairOf } from './request.js';
import { W } from '../words/words.js';

const LETTERS = /\p{L}{3,}/gu;
const MOST_UNKNOWN = 3;
const LONGEST_WORD = 40; // letters
const MOST_WORDS = 60; // the shipped models were taught short questions

/** What the pair cannot judge about a request, in a sentence. @param {Asked} form */
export function scope({ catalog, request }) {
  const pair = pairOf(catalog, request.pair);
  if (!pair || pair.knows === 'anything') return '';
  const { knows, words } = pair;
  const media = [...request.media, ...request.history.flatMap((turn) => turn.media)];
  if (!media.length) return W.scope.outside(W.scope.noPicture[knows]);
  const others = request.media
    .map((item) => ({ name: item.name, kind: kind(item, catalog) }))
    .filter((item) => item.kind !== knows && (knows === 'scenes' || item.kind !== null));
  if (others.length) {
    const sure = others.some((item) => item.kind !== null);
    return W.scope.outside(W.scope.other[knows](others.map(({ name }) => name)), sure);
  }
  const long = request.question.match(/\S+/g)?.length ?? 0;
  if (long > MOST_WORDS) return W.scope.outside(W.scope.long(long));
  const unknown = [...new Set(words && request.question.match(LETTERS))]
    .filter((word) => !taught(words ?? [], word.toLowerCase()))
    .slice(0, MOST_UNKNOWN)
    .map((word) => word.slice(0, LONGEST_WORD));
  return unknown.length ? W.scope.outside(W.scope.words(unknown)) : '';
}

/** Another pair that can judge it. @param {Asked} form */
export function better({ catalog, request }) {
  const knows = pairOf(catalog, request.pair)?.knows;
  const other = knows === 'scenes' ? 'photographs' : 'scenes';
  const { media, history } = request;
  const fits = media.length
    ? media.every((item) => kind(item, catalog) !== knows)
    : other === 'photographs' && !history.some((turn) => turn.media.length);
  return fits ? catalog.pairs.find((p) => p.available && p.knows === other) : undefined;
}

/** What a file is known to show. @param {Media} item @param {Catalog} catalog */
function kind(item, catalog) {
  const example = catalog.examples.find((e) => e.id === item.example);
  return (example && pairOf(catalog, example.pair)?.knows) ?? null;
}

/** Also by its singular. @param {string[]} words @param {string} word */
const taught = (words, word) => words.includes(word) || words.includes(word.replace(/s$/, ''));
