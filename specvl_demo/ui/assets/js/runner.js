/* One race on the server at a time: asks for it, follows its stream, ends it. Whoever asks says what is to become of the
   records; the promise is kept when the server is done. */

import { Stream } from './stream.js';
import { W } from './words.js';

export class Runner {
  /** api: {server, trigger, watch} of the component. */
  constructor(api) {
    this.api = api;
    this.busy = false;
    this.on = null;
    this.failed = null;
    this.stream = new Stream({
      queue: (e) => this.on?.status(W.run.queue(e.place, e.eta_s)),
      status: (e) => this.on?.status([W.run.stage[e.stage] ?? e.stage, e.detail].filter(Boolean).join(' ')),
      begin: (e) => this.record(e), round: (e) => this.record(e), end: (e) => this.record(e),
      heat: (e) => this.on?.heat?.(e.lanes),
      error: (e) => { this.failed = e.text; },
      done: () => this.finish(),
    }, (run) => api.server.batches(run));
    api.watch((value) => this.stream.feed(value));
  }

  /** Run a request. on: {status(text), record(record), heat(lanes)}. Gives the sentence of what went wrong, or null. */
  run(request, on) {
    if (this.busy) return Promise.resolve(W.run.busy);
    this.busy = true;
    this.failed = null;
    this.on = on;
    on.status(W.run.stage.starting);
    return new Promise((resolve) => {
      this.resolve = resolve;
      this.api.trigger('run', request);
    });
  }

  record({ k, record }) { this.on?.record({ kind: k, ...record }); }

  stop() {
    if (this.busy && this.stream.run) this.api.server.stop(this.stream.run);
  }

  finish() {
    if (!this.busy) return;
    this.busy = false;
    this.on = null;
    this.resolve(this.failed);
  }
}
