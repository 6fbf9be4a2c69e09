/* The live stream: JSON batches with sequence numbers, in order. Repeated batches are dropped; where one is missing the
   whole run is fetched again, so that the last state is never lost.
   Events of a batch: {k: 'run' | 'queue' | 'status' | 'begin' | 'round' | 'end' | 'error' | 'done', ...}. */

export class Stream {
  /** on: a function for each kind of event; fetchRun(id) gives all batches of a run so far. */
  constructor(on, fetchRun) {
    this.on = on;
    this.fetchRun = fetchRun;
    this.reset();
  }

  reset() {
    this.run = null;
    this.next = 0;
    this.lag = 0;
    this.healing = false;
    this.finished = false;
  }

  /** One batch as it came from the server. */
  feed(text) {
    if (!text) return;
    const batch = JSON.parse(text);
    if (batch.run !== this.run) {
      if (batch.seq !== 0) { this.heal(batch.run); return; }
      this.reset();
      this.run = batch.run;
    }
    if (batch.seq < this.next) return;
    if (batch.seq > this.next) { this.heal(batch.run); return; }
    this.take(batch);
  }

  take(batch) {
    this.next = batch.seq + 1;
    this.stamp = batch.ts;
    for (const event of batch.events) {
      if (event.k === 'done') this.finished = true;
      this.on[event.k]?.(event);
    }
  }

  /** Some batches never came: fetch them all and take what is new. */
  async heal(run) {
    if (this.healing) return;
    this.healing = true;
    const batches = await this.fetchRun(run).finally(() => { this.healing = false; });
    if (run !== this.run) {
      this.reset();
      this.run = run;
    }
    for (const text of batches) {
      const batch = JSON.parse(text);
      if (batch.seq >= this.next) this.take(batch);
    }
  }
}
