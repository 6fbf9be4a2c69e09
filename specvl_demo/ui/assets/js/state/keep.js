/* What a visit stores in this browser, so that a reload loses nothing: the form, the files of the
   question, the last races. Nothing of it leaves the browser. If it cannot store anything (a
   private window), the page works the same. */

const FORM = 'specvl-form';
const BENCH = 'specvl-compare';
const MOST_RUNS = 12;

/** The database of this page, opened once; rejected if the browser has none. */
let opening = null;
function database() {
  opening ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open('specvl', 1);
    asked.onupgradeneeded = () => {
      for (const name of ['files', 'runs']) asked.result.createObjectStore(name);
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opening;
}

/** One request on a store; `fallback` if it fails. */
async function ask(store, mode, fn, fallback = null) {
  try {
    const db = await database();
    return await new Promise((resolve, reject) => {
      const transaction = db.transaction(store, mode);
      const asked = fn(transaction.objectStore(store));
      transaction.commit(); // at once: a reload in this moment loses nothing
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  } catch {
    return fallback;
  }
}

/** The value stored under a key; null if there is none. area: 'sessionStorage' for this tab's. */
export function stored(key, area = 'localStorage') {
  try {
    return JSON.parse(window[area].getItem(key));
  } catch {
    return null;
  }
}

/** Store a value under a key; false if the browser's storage is full or forbidden. */
export function store(key, value, area = 'localStorage') {
  try {
    window[area].setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** The form as this tab left it, else as the last tab did, with the race that was shown with it;
 *  null if none is stored. */
export const form = () => stored(FORM, 'sessionStorage') ?? stored(FORM);

/** Keep it for a reload of this tab, and for a later visit. */
export function keepForm(state) {
  store(FORM, state, 'sessionStorage');
  return store(FORM, state);
}

/** Compare's form as this tab left it, with its bench; null if none is kept. */
export const bench = () => stored(BENCH, 'sessionStorage');
export const keepBench = (state) => store(BENCH, state, 'sessionStorage');

/** A file of the question by its place on the server, to be sent again in a later visit. */
export const keepFile = (path, file) => ask('files', 'readwrite', (store) => store.put(file, path));

export const file = (path) => ask('files', 'readonly', (store) => store.get(path));

/** Store a finished race: {records, meta, lanes}; the oldest are removed. Returns its key. */
export async function keepRun(run) {
  const key = Date.now();
  await ask('runs', 'readwrite', (store) => store.put(run, key));
  const keys = await ask('runs', 'readonly', (store) => store.getAllKeys(), []);
  for (const old of keys.slice(0, -MOST_RUNS))
    await ask('runs', 'readwrite', (store) => store.delete(old));
}

/** The kept races, newest first. */
export const runs = async () =>
  (await ask('runs', 'readonly', (store) => store.getAll(), [])).reverse();

/** Forget all of it. */
export async function forget() {
  localStorage.removeItem(FORM);
  for (const form of [FORM, BENCH]) sessionStorage.removeItem(form);
  for (const name of ['files', 'runs']) await ask(name, 'readwrite', (store) => store.clear());
}
