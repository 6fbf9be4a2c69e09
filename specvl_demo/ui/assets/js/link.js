/* A request as a link: everything but uploaded files. Examples are stored by name. A link may come
   from anywhere, so its contents are checked again wherever they are used. */

const KEY = 'race';
const LONGEST = 8000;

/** The view in this page's address, null if there is none: `#learn`, or `#race=…` with a request.
 *  */
export function view(known) {
  const [name] = location.hash.slice(1).split('=');
  return known.includes(name) ? name : null;
}

/** The address of this page with a request in it. */
export function write(request) {
  const { history, media, ...rest } = request;
  const example = media.find((m) => m.example)?.example;
  const text = JSON.stringify({
    ...rest,
    ...(example && { example }),
  });
  const url = new URL(location.href);
  url.hash = `${KEY}=${encode(text)}`;
  return url.href;
}

/** The request in this page's address, null if there is none or it cannot be read. */
export function read() {
  const text = new URLSearchParams(location.hash.slice(1)).get(KEY);
  if (!text || text.length > LONGEST) return null;
  try {
    const request = JSON.parse(decode(text));
    return request && typeof request === 'object' ? request : null;
  } catch {
    return null;
  }
}

function encode(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
}

function decode(text) {
  const bytes = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
  return new TextDecoder().decode(Uint8Array.from(bytes, (c) => c.charCodeAt(0)));
}
