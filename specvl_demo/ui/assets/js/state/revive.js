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
  /** @param {Media[]} [media] */
  const all = async (media) => {
    const items = await Promise.all((media ?? []).map(bring));
    return items.flatMap((item) => (item?.path ? [item] : []));
  };
  const turns = request.history ?? [];
  const history = await Promise.all(
    turns.map(async (turn) => ({ ...turn, media: await all(turn.media) })),
  );
  const asked = { ...request, media: await all(request.media), history };
  return { asked, gone: lost.join(', ') };
}
