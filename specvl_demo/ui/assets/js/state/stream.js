/* The live stream: numbered batches of events. Repeated ones and those of older runs are dropped. */

export class Stream {
  /** Names of runs. @type {Set<string>} */
  over = new Set();
  /** Whose batches are taken; null: those of the next that comes. @type {string | null} */
  run = null;
  next = 0;

  /** @param {{ [kind: string]: (event: any) => void }} on by kind of event; 'record' for all records */
  constructor(on) {
    this.on = on;
  }

  /** Prepare for another run. */
  reset() {
    if (this.run) this.over.add(this.run);
    this.run = null;
    this.next = 0;
  }

  /** @param {string} text of one batch */
  feed(text) {
    if (!text) return;
    /** @type {{ run: string, seq: number, events: StreamEvent[] }} */
    const batch = JSON.parse(text);
    if (this.over.has(batch.run)) return;
    this.run ??= batch.run;
    if (batch.run !== this.run || batch.seq < this.next) return;
    this.next = batch.seq + 1;
    for (const event of batch.events) this.on[event.record ? 'record' : event.k]?.(event);
  }
}
