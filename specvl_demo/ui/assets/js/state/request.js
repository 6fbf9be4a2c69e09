/* What a request asks, and when two of them ask the same: plain functions over the catalog. */

/** @import { Catalog, Media, Method, Request, Values } from './types.js' */

/** The request before the visitor changes anything.
 *  @param {Catalog} catalog @returns {Request} */
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

/** Those of the methods that judge by the target's likeliest token: they are not defined for sampling.
 *  @param {Catalog} catalog @param {Pick<Request, 'methods' | 'settings'>} request
 *  @param {unknown} temperature @returns {Method[]} */
export function unsampled(catalog, { methods, settings }, temperature) {
  if (!(Number(temperature) > 0)) return [];
  return catalog.methods.filter(
    ({ name, greedy }) => greedy && methods.includes(name) && !settings[name]?.verifier,
  );
}

/** What is chosen besides pair, question and methods: sampling, and how this pair is loaded.
 *  @param {Pick<Request, 'pair' | 'sampling' | 'loading'>} request @returns {Values} */
export const chosen = (request) => ({ ...request.sampling, ...request.loading[request.pair] });

/** Everything by which one requested race differs from another, in the order of W.run.changes.
 *  @param {Request} request @returns {unknown[]} */
export const parts = ({ methods, settings, ...request }) => [
  request.pair,
  paths(request.media),
  request.question.trim(),
  request.system,
  methods.map((name) => [name, Object.entries(settings[name] ?? {}).sort()]),
  Object.entries(chosen(request)).sort(),
  request.history.length,
];

/** The files of a question as a text that is equal if they are the same. @param {Media[]} media */
export const paths = (media) => media.map((m) => m.path).join();

/** The kinds of weights that can be chosen for a pair on this machine: only a GPU has packed ones.
 *  @param {{ [key: string]: unknown }} loading */
export const weightKinds = (loading) => ['dtype', 'quantised'].filter((key) => key in loading);
