/* The live stream: numbered JSON batches. Repeated batches are dropped, and so is whatever still comes of a run that is
   over.
   Events of a batch: {k: 'run' | 'queue' | 'status' | 'begin' | 'round' | 'end' | 'remarks' | 'error' | 'done', ...};
   a record is an event's 'record'. */

export class Stream {
  /** on: a function for each kind of event, one for all records. */
  constructor(on) {
    this.on = on;
    this.over = new Set(); // runs of which nothing is wanted any more
    this.follow(null);
  }

  /** Prepare for another run; late batches of the one before must not be mistaken for it. */
  reset() {
    if (this.run) this.over.add(this.run);
    this.follow(null);
  }

  follow(run) {
    this.run = run;
    this.next = 0;
  }

  /** One batch as it came from the server. */
  feed(text) {
    if (!text) return;
    const batch = JSON.parse(text);
    if (this.over.has(batch.run)) return;
    if (this.run === null) this.follow(batch.run);
    if (batch.run !== this.run || batch.seq < this.next) return;
    this.next = batch.seq + 1;
    for (const event of batch.events) this.on[event.record ? 'record' : event.k]?.(event);
  }
}
