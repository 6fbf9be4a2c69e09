/* Files of an earlier visit, sent again from this browser. */

import * as kept from './keep.js';

/** @import { Media, Parts, Request, Turn } from './types.js' */

/** Send the files of an earlier visit's request again. Returns the request with those, and the
 *  names of those that are lost. @param {Request} request @param {Parts} parts */
export async function revive(request, { api, catalog }) {
  /** @type {string[]} */
  const lost = [];
  /** Send a kept file again; null if it is lost. @param {Media} item
   *  @returns {Promise<Media | null>} */
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
  /** Send all of them again, and return those that are not lost.
   *  @param {Media[] | undefined} media */
  const all = async (media) => {
    const items = await Promise.all((media ?? []).map(bring));
    return items.filter((item) => item !== null).filter((item) => item.path);
  };
  /** A turn with its files on the server again. @param {Turn} turn @returns {Promise<Turn>} */
  const revived = async (turn) => ({ ...turn, media: await all(turn.media) });
  const history = await Promise.all((request.history ?? []).map(revived));
  const asked = { ...request, media: await all(request.media), history };
  return { asked, gone: lost.join(', ') };
}
