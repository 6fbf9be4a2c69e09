/* What a request asks, and when two ask the same. */

import { W } from '../words/words.js';

/** @param {Catalog} catalog @param {string} id */
export const pairOf = ({ pairs }, id) => pairs.find((pair) => pair.id === id);

/** The request of a form that nobody has filled in. @param {Catalog} catalog @returns {FormRequest} */
export function blank(catalog) {
  const pair = catalog.pairs.find((p) => p.available) ?? catalog.pairs[0];
  return {
    pair: pair.id,
    media: [],
    question: '',
    system: '',
    methods: [...pair.first],
    settings: {},
    sampling: {},
    loading: {},
    history: [],
  };
}

/** The chosen methods that can run, and the titles of those `left` out: if sampling is asked for, they are not defined.
 *  @param {Catalog} catalog @param {Pick<FormRequest, 'methods' | 'settings'>} request @param {unknown} temperature */
export function runnable(catalog, { methods: all, settings }, temperature) {
  const fails = (/** @type {Method} */ { name, greedy }) =>
    greedy && all.includes(name) && !settings[name]?.verifier;
  const left = Number(temperature) > 0 ? catalog.methods.filter(fails) : [];
  const methods = all.filter((name) => !left.some((method) => method.name === name));
  return { methods, left: left.map(({ title }) => title) };
}

/** The changed values of sampling and loading. @param {Pick<FormRequest, 'pair' | 'sampling' | 'loading'>} request */
export const chosen = (request) => ({ ...request.sampling, ...request.loading[request.pair] });

/** What requested races can differ in, in the order of W.run.changes. @param {FormRequest} request */
export const parts = ({ methods, settings, ...request }) => [
  request.pair,
  paths(request.media),
  request.question.trim(),
  request.system,
  methods.map((name) => [name, Object.entries(settings[name] ?? {}).sort()]),
  Object.entries(chosen(request)).sort(),
  request.history.length,
];

/** A text that is equal for the same files. @param {Media[]} media */
export const paths = (media) => media.map((m) => m.path).join();

/** What can be chosen of a pair's weights: only a GPU has quantised ones. @param {Pair['loading']} loading */
export const weightKinds = (loading) => ['dtype', 'quantised'].filter((key) => key in loading);

/** A request with what another one gives, and the names there that are not known.
 *  @param {Asked} form @param {Partial<FormRequest>} other */
export function takeOver({ catalog, request }, other) {
  const standard = blank(catalog);
  const taken = { ...request };
  for (const key of /** @type {(keyof FormRequest)[]} */ (Object.keys(standard)))
    if (typeof other[key] === typeof standard[key]) Object.assign(taken, { [key]: other[key] });
  const names = new Set(catalog.methods.map((m) => m.name));
  const unknown = taken.methods.filter((m) => !names.has(m));
  const known = taken.methods.filter((m) => names.has(m) && m !== 'ar');
  taken.methods = known.slice(0, catalog.limits.lanes);
  if (!pairOf(catalog, taken.pair)) {
    unknown.unshift(taken.pair);
    taken.pair = standard.pair;
  }
  return { taken, unknown };
}

/** What is too long or too many, in a sentence. @param {Asked} form */
export function tooMuch({ catalog, request }) {
  const { media, history, question, system } = request;
  const { turns, shown, question: most } = catalog.limits;
  if (question.length > most) return W.ask.long('question', question.length, most);
  if (system.length > most) return W.ask.long('system prompt', system.length, most);
  if (history.length > turns) return W.chat.tooLong(history.length, turns);
  const n = history.reduce((sum, turn) => sum + turn.media.length, media.length);
  return n > shown ? W.chat.tooMuch(n, shown) : null;
}

/** Why a pair cannot be loaded as chosen. @param {Pair} pair @param {FormRequest} request */
export function loadingRefusal({ loading, id }, request) {
  const values = request.loading[id] ?? {};
  const reasons = weightKinds(loading).map((key) => loading[key][String(values[key])]);
  return reasons.find((why) => typeof why === 'string') ?? null;
}
