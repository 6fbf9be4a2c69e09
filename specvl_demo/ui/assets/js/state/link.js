/* A request as a link, but for uploaded files. It may come from anyone, so it is checked where it is used. */

import { W } from '../words/words.js';

const KEY = 'race';
const SERVED = 'gradio_api/file='; // a file of the page's own

/** The view that the address names: `#learn`, or `#race=…` with a request. */
export function view() {
  const [name] = location.hash.slice(1).split('=');
  return name in W.tabs ? name : 'race';
}

/** The link to a request. @param {FormRequest} request */
export function write(request) {
  const { history, media, ...rest } = request;
  const example = media.find((m) => m.example)?.example;
  const without = (!example && media.length > 0) || undefined;
  const text = JSON.stringify({ ...rest, example, without });
  const url = new URL(location.href);
  url.hash = `${KEY}=${toBase64Url(text)}`;
  return url.href;
}

/** Whether another page shows this one within it: then the race alone. */
export const embedded = () => new URLSearchParams(location.search).has('embed');

/** The trace that the page's address asks for; '' if it lies elsewhere. */
export function traceAsked() {
  const path = new URLSearchParams(location.search).get('trace');
  if (!path) return null;
  return /^\w+:|\/\//.test(path) ? '' : new URL(SERVED + path, document.baseURI).href;
}

/** A link to a trace on this server. @param {string} trace */
export function toTrace(trace) {
  const page = new URL(document.baseURI);
  page.search = page.hash = '';
  page.searchParams.set('trace', trace.slice(trace.indexOf(SERVED) + SERVED.length));
  return page.href;
}

/** The request in this page's address, if it can be read. */
export function read() {
  const text = new URLSearchParams(location.hash.slice(1)).get(KEY);
  let request = null;
  try {
    if (text) request = JSON.parse(fromBase64Url(text));
  } catch {
    // the link is damaged
  }
  const asked = typeof request === 'object' ? request : null;
  return { asked, broken: Boolean(text) && !asked };
}

/** @param {string} text */
function toBase64Url(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
}

/** @param {string} text */
function fromBase64Url(text) {
  const bytes = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)));
}
