/* One race on the server at a time: requests it, follows its stream, ends it. The caller decides
   what happens to the records; the promise resolves when the server is done. */

import { Stream } from './stream.js';
import { W } from './words.js';

const SILENT_MS = 5000; // so long without a batch, and we ask whether there is something that never came
const MOST_MISSES = 3;

export class Runner {
  /** api: {server, trigger, watch} of the component. */
  constructor(api) {
    this.api = api;
    this.busy = false;
    this.on = null;
    this.failed = null;
    this.stream = new Stream(
      {
        run: () => {
          if (this.stopping) this.stop();
        },
        queue: (e) => this.wait(e.place, e.eta_s),
        status: (e) =>
          this.status(
            e.stage === 'loading'
              ? W.run.loading(e.detail?.replace(/^Loading /, '').replace(/.*\//, '')) // a folder means nothing here
              : (W.run.stage[e.stage] ?? e.stage),
          ),
        record: (e) => this.on?.record(e.record),
        error: (e) => {
          this.failed = e.text;
        },
        done: () => this.finish(),
      },
      (run) => api.server.batches(run),
    );
    api.watch((value) => {
      this.heard = Date.now();
      this.stream.feed(value);
    });
  }

  /** Run a request. on: {status(text), record(record)}. Returns the error sentence, or null. */
  run(request, on) {
    if (this.busy) return Promise.resolve(W.run.busy);
    this.busy = true;
    this.failed = null;
    this.stopping = false;
    this.place = null;
    this.request = request;
    this.stream.reset();
    this.on = on;
    this.heard = Date.now();
    this.misses = 0;
    this.watch = setInterval(() => this.look(), SILENT_MS / 2);
    on.status(W.run.stage.starting);
    return new Promise((resolve) => {
      this.resolve = resolve;
      this.api.trigger('run', request);
    });
  }

  status(text) {
    if (!this.stopping) this.on?.status(text); // that it stops stays said
  }

  /** In line: an estimate that grows was wrong, and none is given. */
  wait(place, seconds) {
    const late = place === this.place && seconds > this.least;
    Object.assign(this, { place, least: late ? this.least : seconds });
    this.status(W.run.queue(place, late ? null : seconds));
  }

  /** Why a request failed: the sentence, unless the server does not answer at all. */
  async reason(sentence) {
    const heard = await this.api.server.batches('').catch(() => null);
    return Array.isArray(heard) ? sentence : W.run.away;
  }

  /** End the run after the round it is in; one that has no name yet ends as soon as it has. */
  stop() {
    this.stopping = true;
    if (this.busy && this.stream.run) this.api.server.stop(this.stream.run);
  }

  /** The stream is silent: fetch what may have been missed; give up if the server did not accept
   *  the request, or no longer answers. */
  async look() {
    const { run } = this.stream;
    if (Date.now() - this.heard < (run ? SILENT_MS : SILENT_MS / 2)) return;
    const { batches } = this.api.server;
    try {
      if (run) await this.stream.heal();
      else if (!Array.isArray(await batches(''))) throw new Error(W.run.lost);
      this.misses = 0;
      // The event that asks tells nothing of a refusal; a call that carries the same does.
      const taken =
        run || !this.busy || Array.isArray(await batches(this.request).catch(() => null));
      if (!taken && this.busy) this.give(W.run.refused);
    } catch {
      this.misses += 1;
      if (this.misses >= MOST_MISSES) this.give(W.run.lost);
    }
  }

  give(sentence) {
    this.failed = sentence;
    this.finish();
  }

  finish() {
    if (!this.busy) return;
    clearInterval(this.watch);
    this.busy = false;
    this.on = null;
    this.resolve(this.failed);
  }
}
