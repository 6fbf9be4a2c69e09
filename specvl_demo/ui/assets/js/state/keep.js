/* What a visit stores in this browser, so that a reload loses nothing. Without a storage (a private window) the page
   works the same. */

/** @import { KeptRace } from './types.js' */

/** @typedef {'localStorage' | 'sessionStorage'} Area */

const FORM = 'specvl-form';
const BENCH = 'specvl-compare';
const MOST_RUNS = 12;
/** @type {('files' | 'runs')[]} */
const STORES = ['files', 'runs'];

/** @type {Promise<IDBDatabase> | null} */
let opening = null;
/** The browser's database, opened once; rejected if it has none. */
function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open('specvl', 1);
    request.onupgradeneeded = () => {
      for (const name of STORES) request.result.createObjectStore(name);
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opening;
}

/** A store's answer to one request, `fallback` if there is none. @param {'files' | 'runs'} name
 *  @param {IDBTransactionMode} mode @param {(all: IDBObjectStore) => IDBRequest} fn
 *  @returns {Promise<any>} */
async function ask(name, mode, fn, fallback = /** @type {unknown} */ (null)) {
  try {
    const db = await database();
    return await new Promise((resolve, reject) => {
      const transaction = db.transaction(name, mode);
      const request = fn(transaction.objectStore(name));
      transaction.commit(); // at once: a reload in this moment loses nothing
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  } catch {
    return fallback;
  }
}

/** The value that the browser's storage has for a key; null if none. area: 'sessionStorage' for
 *  this tab's. @param {string} key @param {Area} area */
export function stored(key, area = 'localStorage') {
  try {
    return JSON.parse(globalThis[area].getItem(key) ?? 'null');
  } catch {
    return null;
  }
}

/** Write a value into the browser's storage, if that can be.
 *  @param {string} key @param {unknown} value @param {Area} area */
export function store(key, value, area = 'localStorage') {
  try {
    globalThis[area].setItem(key, JSON.stringify(value));
  } catch {
    // It is full or forbidden: the page works the same.
  }
}

/** The form as this tab left it, else as the last tab did; null if none is stored. */
export const form = () => stored(FORM, 'sessionStorage') ?? stored(FORM);

/** Keep the form for a reload of this tab, and for a later visit. @param {object} state */
export function keepForm(state) {
  store(FORM, state, 'sessionStorage');
  store(FORM, state);
}

/** Compare's form as this tab left it, with its bench; null if none is kept. */
export const bench = () => stored(BENCH, 'sessionStorage');
/** Keep Compare's form for a reload of this tab. @param {object} state */
export const keepBench = (state) => store(BENCH, state, 'sessionStorage');

/** Keep a file by its place on the server, to be sent again in a later visit. @param {string} path
 *  @param {Blob} sent */
export const keepFile = (path, sent) => ask('files', 'readwrite', (all) => all.put(sent, path));

/** The kept file that was at this place on the server. @param {string} path */
export const file = (path) => ask('files', 'readonly', (all) => all.get(path));

/** Keep a race; the oldest are removed. @param {KeptRace} run */
export async function keepRun(run) {
  const key = Date.now();
  await ask('runs', 'readwrite', (all) => all.put(run, key));
  const keys = await ask('runs', 'readonly', (all) => all.getAllKeys(), []);
  for (const old of keys.slice(0, -MOST_RUNS))
    await ask('runs', 'readwrite', (all) => all.delete(old));
}

/** The kept races, the newest first. */
export const runs = async () =>
  (await ask('runs', 'readonly', (all) => all.getAll(), [])).reverse();

/** Remove all that is kept. */
export async function forget() {
  store(FORM, null);
  for (const key of [FORM, BENCH]) store(key, null, 'sessionStorage');
  for (const name of STORES) await ask(name, 'readwrite', (all) => all.clear());
}
