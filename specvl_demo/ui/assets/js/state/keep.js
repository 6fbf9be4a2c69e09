/* What a visit stores in this browser, if it can (a private window cannot). */

const MOST_RUNS = 12;

/** @param {IDBRequest} request @returns {Promise<any>} */
const resultOf = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** @type {Promise<IDBDatabase> | null} */
let opening = null;
/** Opened once. */
function database() {
  if (opening) return opening;
  const request = indexedDB.open('specvl', 1);
  request.onupgradeneeded = () => {
    for (const name of ['files', 'runs']) request.result.createObjectStore(name);
  };
  opening = resultOf(request);
  return opening;
}

/** A store's answer to a request; null if there is none.
 *  @param {'files' | 'runs'} name @param {(all: IDBObjectStore) => IDBRequest} fn @returns {Promise<any>} */
async function ask(name, fn) {
  try {
    const transaction = (await database()).transaction(name, 'readwrite');
    const request = fn(transaction.objectStore(name));
    transaction.commit(); // at once: a reload in this moment loses nothing
    return await resultOf(request);
  } catch {
    return null;
  }
}

/** @param {string} key @param {StorageArea} area */
export function stored(key, area = 'localStorage') {
  try {
    return JSON.parse(globalThis[area].getItem(key) ?? 'null');
  } catch {
    return null;
  }
}

/** @param {string} key @param {unknown} value @param {StorageArea} area */
export function store(key, value, area = 'localStorage') {
  try {
    globalThis[area].setItem(key, JSON.stringify(value));
  } catch {
    // full or forbidden
  }
}

/** What is kept for reloads of this tab: another one is a new visitor's. @param {string} key */
const inTab = (key) => ({
  read: () => stored(key, 'sessionStorage'),
  /** @param {object | null} state */
  keep: (state) => store(key, state, 'sessionStorage'),
});

export const form = inTab('specvl-form');
export const bench = inTab('specvl-compare');

/** For a later visit. @param {string} path on the server @param {Blob} sent */
export const keepFile = (path, sent) => ask('files', (all) => all.put(sent, path));

/** @param {string} path on the server */
export const file = (path) => ask('files', (all) => all.get(path));

/** @param {KeptRace} run */
export async function keepRun(run) {
  const key = Date.now();
  await ask('runs', (all) => all.put(run, key));
  const keys = (await ask('runs', (all) => all.getAllKeys())) ?? [];
  for (const old of keys.slice(0, -MOST_RUNS)) await ask('runs', (all) => all.delete(old));
}

/** The newest first. */
export const runs = async () => ((await ask('runs', (all) => all.getAll())) ?? []).reverse();

export async function forget() {
  form.keep(null);
  bench.keep(null);
  await ask('files', (all) => all.clear());
  await ask('runs', (all) => all.clear());
}
