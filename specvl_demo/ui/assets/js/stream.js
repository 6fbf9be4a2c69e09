/* The live stream: JSON batches with sequence numbers, in order. Repeated batches are dropped, and so is whatever still
   comes of a run that is over; where a batch is missing the whole run is fetched again, so that the last state is never
   lost.
   Events of a batch: {k: 'run' | 'queue' | 'status' | 'begin' | 'round' | 'end' | 'remarks' | 'error' | 'done', ...};
   a record is an event's 'record'. */

export class Stream {
  /** on: a function for each kind of event, one for all records; fetchRun(id) gives all batches of a run so far. */
  constructor(on, fetchRun) {
    this.on = on;
    this.fetchRun = fetchRun;
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
    this.newest = -1; // number of the newest batch that was seen
    this.healing = null;
  }

  /** One batch as it came from the server. */
  feed(text) {
    if (!text) return;
    const batch = JSON.parse(text);
    if (this.over.has(batch.run)) return;
    if (this.run === null) this.follow(batch.run);
    if (batch.run !== this.run) return;
    this.newest = Math.max(this.newest, batch.seq);
    if (batch.seq === this.next) this.take(batch);
    else if (batch.seq > this.next) this.heal().catch(() => {}); // the runner asks again, and tells where it fails
  }

  take(batch) {
    this.next = batch.seq + 1;
    this.stamp = batch.ts;
    for (const event of batch.events) this.on[event.record ? 'record' : event.k]?.(event);
  }

  /** Some batches never arrived: fetch them all and take what is new, until the newest one seen is
   *  included. */
  async heal() {
    const { run } = this;
    if (this.healing === run) return;
    this.healing = run;
    try {
      do {
        const before = this.next;
        const batches = await this.fetchRun(run);
        for (const text of this.run === run ? batches : []) {
          const batch = JSON.parse(text);
          if (this.run === run && batch.seq >= this.next) this.take(batch);
        }
        if (this.next === before) return;
      } while (this.run === run && this.newest >= this.next);
    } finally {
      if (this.healing === run) this.healing = null;
    }
  }
}
