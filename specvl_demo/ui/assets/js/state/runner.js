/* Requests a race at a time, follows its stream, ends it. */

import { Stream } from './stream.js';
import { W } from '../words/words.js';

const SILENT_MS = 5000; // without a batch, of which each second has one
const MOST_MISSES = 3; // looks without an answer

export class Runner {
  busy = false;
  stopping = false;
  /** @type {Listener | null} */
  on = null;
  /** @type {string | null} */
  failure = null;
  /** @type {any} */
  request = null;
  /** When something came last. */
  heard = 0;
  misses = 0;
  /** @type {(failure: string | null) => void} */
  resolve = () => {};
  watch = 0; // a timer

  /** @param {Api} api */
  constructor(api) {
    this.api = api;
    this.stream = new Stream({
      run: () => this.stopping && this.stop(),
      queue: (e) => this.status(W.run.queue(e.place)),
      status: (e) =>
        this.status(
          e.stage === 'loading'
            ? W.run.loading(e.detail?.replace(/^Loading /, '').replace(/.*\//, '')) // a folder means nothing here
            : (/** @type {{ [stage: string]: string }} */ (W.run.stage)[e.stage] ?? e.stage),
        ),
      record: (e) => this.on?.record(e.record),
      error: (e) => (this.failure = e.text),
      done: () => this.finish(),
    });
    api.watch((value) => {
      this.hear();
      this.stream.feed(value);
    });
  }

  /** The server is there. */
  hear() {
    this.heard = Date.now();
    this.misses = 0;
  }

  /** Send a request, and hand on what comes. Returns what failed.
   *  @param {object} request @param {Listener} on @returns {Promise<string | null>} */
  run(request, on) {
    if (this.busy) return Promise.resolve(W.run.busy);
    this.busy = true;
    this.failure = null;
    this.stopping = false;
    this.request = request;
    this.stream.reset();
    this.on = on;
    this.hear();
    this.watch = setInterval(() => this.look(), SILENT_MS / 2);
    on.status(W.run.stage.starting);
    return new Promise((resolve) => {
      this.resolve = resolve;
      this.api.trigger('run', request);
    });
  }

  /** @param {string} text */
  status(text) {
    if (!this.stopping) this.on?.status(text); // that it stops stays said
  }

  /** Why a request failed: this, unless the server does not answer at all. @param {string} sentence */
  async reason(sentence) {
    return (await this.answers('')) ? sentence : W.run.away;
  }

  /** Whether the server takes a call that stops no run. @param {unknown} payload */
  async answers(payload) {
    return (await this.api.server.stop_run(payload).catch(() => false)) === null;
  }

  /** End the run after this round; one that has no name yet ends as soon as it has. */
  stop() {
    this.stopping = true;
    if (this.busy && this.stream.run) this.api.server.stop_run(this.stream.run);
  }

  /** Give up if nothing comes: the request was not accepted, or the server is gone. */
  async look() {
    const { run } = this.stream;
    if (Date.now() - this.heard < (run ? SILENT_MS : SILENT_MS / 2)) return;
    if (run || !(await this.answers(''))) {
      this.misses += 1;
      if (this.misses >= MOST_MISSES) this.fail(W.run.lost);
      // The event that asks tells nothing of a refusal; a call that carries the same does.
    } else if (this.busy && !(await this.answers(this.request))) this.fail(W.run.refused);
  }

  /** @param {string} sentence */
  fail(sentence) {
    this.failure = sentence;
    this.finish();
  }

  finish() {
    if (!this.busy) return;
    clearInterval(this.watch);
    this.busy = false;
    this.on = null;
    this.resolve(this.failure);
  }
}
