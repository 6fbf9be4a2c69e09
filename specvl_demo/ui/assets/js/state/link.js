/* A request as a link: everything but uploaded files. Examples are stored by name. A link may come
   from anywhere, so its contents are checked again wherever they are used. */

/** @import { Request } from './types.js' */

const KEY = 'race';
const LONGEST = 8000;

/** The view in this page's address, null if there is none: `#learn`, or `#race=…` with a request.
 *  @param {string[]} views */
export function view(views) {
  const [name] = location.hash.slice(1).split('=');
  return views.includes(name) ? name : null;
}

/** The address of this page with a request in it. @param {Request} request */
export function write(request) {
  const { history, media, ...rest } = request;
  const example = media.find((m) => m.example)?.example;
  const text = JSON.stringify({ ...rest, ...(example && { example }) });
  const url = new URL(location.href);
  url.hash = `${KEY}=${encode(text)}`;
  return url.href;
}

/** {asked, broken}: the request in this page's address, null if there is none or, broken, if it cannot be read. */
export function read() {
  const text = new URLSearchParams(location.hash.slice(1)).get(KEY);
  if (!text) return { asked: null, broken: false };
  try {
    const request = text.length > LONGEST ? null : JSON.parse(decode(text));
    const asked = request && typeof request === 'object' ? request : null;
    return { asked, broken: asked === null };
  } catch {
    return { asked: null, broken: true };
  }
}

/** @param {string} text */
function encode(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
}

/** @param {string} text */
function decode(text) {
  const bytes = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)));
}
