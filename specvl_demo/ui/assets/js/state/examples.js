/* The examples that a form can ask. */

import { blank, pairOf, paths } from './request.js';

/** @param {FormRequest} request @param {Pick<Example, 'question' | 'media'>} example */
const asksExample = (request, { question, media }) =>
  !request.history.length &&
  request.question.trim() === question.trim() &&
  paths(request.media) === paths(media);

/** The example that a form asks. @param {Asked} form */
export const askedExample = ({ catalog, request }) =>
  catalog.examples.find((example) => asksExample(request, example));

/** The request that an example stands for.
 *  @param {Catalog} catalog @param {Example} example @returns {FormRequest} */
export function requestOf(catalog, { id, media, methods, pair, question, settings }) {
  return {
    ...blank(catalog),
    media: media.map((m) => ({ ...m, example: id })),
    question,
    methods: [...methods],
    settings: settings ? { [methods[0]]: { ...settings } } : {},
    ...(pair && { pair }),
  };
}

/** The example whose settings a method has, first the one that is asked. @param {Asked} form @param {string} name */
export function exampleLike({ catalog, request }, name) {
  const own = JSON.stringify(request.settings[name]);
  const alike = catalog.examples.filter(
    ({ pair, methods, settings }) =>
      pair === request.pair && methods[0] === name && JSON.stringify(settings) === own,
  );
  return alike.find((e) => asksExample(request, e)) ?? alike[0];
}

/** The settings that are no example's. @param {Asked} form */
export const ownSettings = (form) => {
  const all = Object.entries(form.request.settings);
  return Object.fromEntries(all.filter(([name]) => !exampleLike(form, name)));
};

/** What changes where files take the place of an untouched example's: its settings go, its question unless they are as many
 *  and of the same kind, and its pair gives way to `home`. coming: files on their way.
 *  @param {Form} form @param {Media[]} media @param {number} coming @returns {Partial<FormRequest> | null} */
export function giveWay(form, media, coming) {
  const { catalog, home, request } = form;
  const example = askedExample(form);
  if (!example || !media.length || media.some((item) => item.example)) return null;
  const pair = pairOf(catalog, home);
  const same = media.every((item) => item.kind === example.media[0]?.kind);
  const fits = same && media.length + coming === example.media.length;
  return {
    settings: ownSettings(form),
    ...(pair && request.pair !== home && { pair: home, methods: [...pair.first], settings: {} }),
    ...(!fits && { question: '' }),
  };
}
