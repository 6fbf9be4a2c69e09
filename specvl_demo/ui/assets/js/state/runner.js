/* One race on the server at a time: requests it, follows its stream, ends it. The caller decides
   what happens to the records; the promise resolves when the server is done. */

import { Stream } from './stream.js';
import { W } from '../words/words.js';

const SILENT_MS = 5000; // so long without a batch, and we ask whether the server is there: it sends one each second
const MOST_MISSES = 3;

export class Runner {
  /** api: {server, trigger, watch} of the component. */
  constructor(api) {
    this.api = api;
    this.busy = false;
    this.on = null;
    this.failed = null;
    this.stream = new Stream({
      run: () => {
        if (this.stopping) this.stop();
      },
      queue: (e) => this.status(W.run.queue(e.place)),
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
    });
    api.watch((value) => {
      this.heard = Date.now();
      this.misses = 0;
      this.stream.feed(value);
    });
  }

  /** Run a request. on: {status(text), record(record)}. Returns the error sentence, or null. */
  run(request, on) {
    if (this.busy) return Promise.resolve(W.run.busy);
    this.busy = true;
    this.failed = null;
    this.stopping = false;
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

  /** Why a request failed: the sentence, unless the server does not answer at all. */
  async reason(sentence) {
    return (await this.answers('')) ? sentence : W.run.away;
  }

  /** Whether the server takes a call: one that stops no run, and so changes nothing. */
  async answers(payload) {
    return (await this.api.server.stop_run(payload).catch(() => false)) === null;
  }

  /** End the run after the round it is in; one that has no name yet ends as soon as it has. */
  stop() {
    this.stopping = true;
    if (this.busy && this.stream.run) this.api.server.stop_run(this.stream.run);
  }

  /** The stream is silent: give up if the server did not accept the request, or sends no more. */
  async look() {
    const { run } = this.stream;
    if (Date.now() - this.heard < (run ? SILENT_MS : SILENT_MS / 2)) return;
    if (run || !(await this.answers(''))) {
      this.misses += 1;
      if (this.misses >= MOST_MISSES) this.give(W.run.lost);
      // The event that asks tells nothing of a refusal; a call that carries the same does.
    } else if (this.busy && !(await this.answers(this.request))) this.give(W.run.refused);
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
