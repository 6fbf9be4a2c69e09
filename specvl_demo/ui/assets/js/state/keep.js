/* What a visit stores in this browser, so that a reload loses nothing. Without a storage (a private window) the page
   works the same. */

/** @import { KeptRace } from './types.js' */

/** @typedef {'localStorage' | 'sessionStorage'} Area */

const FORM = 'specvl-form';
const BENCH = 'specvl-compare';
const MOST_RUNS = 12;
/** @type {('files' | 'runs')[]} */
const STORES = ['files', 'runs'];

/** Opened once; rejected if the browser has none. @type {Promise<IDBDatabase> | null} */
let opening = null;
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

/** @param {'files' | 'runs'} name @param {IDBTransactionMode} mode @param {(all: IDBObjectStore) => IDBRequest} fn
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

/** Null if there is none. area: 'sessionStorage' for this tab's. @param {string} key @param {Area} area */
export function stored(key, area = 'localStorage') {
  try {
    return JSON.parse(globalThis[area].getItem(key) ?? 'null');
  } catch {
    return null;
  }
}

/** Returns false if the storage is full or forbidden. @param {string} key @param {unknown} value
 *  @param {Area} area */
export function store(key, value, area = 'localStorage') {
  try {
    globalThis[area].setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** As this tab left it, else as the last tab did; null if none is stored. */
export const form = () => stored(FORM, 'sessionStorage') ?? stored(FORM);

/** For a reload of this tab, and for a later visit. @param {object} state */
export function keepForm(state) {
  store(FORM, state, 'sessionStorage');
  return store(FORM, state);
}

/** Compare's form as this tab left it, with its bench; null if none is kept. */
export const bench = () => stored(BENCH, 'sessionStorage');
/** @param {object} state */
export const keepBench = (state) => store(BENCH, state, 'sessionStorage');

/** By its place on the server, to be sent again in a later visit. @param {string} path @param {Blob} sent */
export const keepFile = (path, sent) => ask('files', 'readwrite', (all) => all.put(sent, path));

/** @param {string} path */
export const file = (path) => ask('files', 'readonly', (all) => all.get(path));

/** The oldest are removed. @param {KeptRace} run */
export async function keepRun(run) {
  const key = Date.now();
  await ask('runs', 'readwrite', (all) => all.put(run, key));
  const keys = await ask('runs', 'readonly', (all) => all.getAllKeys(), []);
  for (const old of keys.slice(0, -MOST_RUNS))
    await ask('runs', 'readwrite', (all) => all.delete(old));
}

/** Newest first. */
export const runs = async () =>
  (await ask('runs', 'readonly', (all) => all.getAll(), [])).reverse();

export async function forget() {
  store(FORM, null);
  for (const key of [FORM, BENCH]) store(key, null, 'sessionStorage');
  for (const name of STORES) await ask(name, 'readwrite', (all) => all.clear());
}
