/* Files of an earlier visit, sent again from this browser. */

import * as kept from './keep.js';

/** Send a request's files again. Returns it with those, and the names of those that are `gone`.
 *  @param {FormRequest} request @param {Parts} parts */
export async function revive(request, { api, catalog }) {
  /** @type {string[]} */
  const lost = [];
  /** @param {Media} item @returns {Promise<Media | null>} */
  const bring = async (item) => {
    const example = catalog.examples.find((e) => e.id === item.example);
    if (example) return example.media.some((m) => m.path === item.path) ? item : null;
    const file = await kept.file(item.path);
    const sent = file && (await api.upload(file).catch(() => null));
    if (!sent) {
      lost.push(item.name);
      return null;
    }
    kept.keepFile(sent.path, file);
    return { ...item, path: sent.path, url: sent.url };
  };
  /** @template {{ media: Media[] }} T @param {T} asking @returns {Promise<T>} */
  const whole = async (asking) => {
    const items = await Promise.all(asking.media.map(bring));
    return { ...asking, media: items.filter((item) => item !== null) };
  };
  const history = await Promise.all(request.history.map(whole));
  const asked = await whole({ ...request, history });
  return { asked, gone: lost.join(', ') };
}
