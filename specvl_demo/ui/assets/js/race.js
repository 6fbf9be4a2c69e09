/* The race that the page shows: its lanes, how far each is shown, what is selected. Views listen and draw.
   Events: 'reset', 'lane', 'round' {lane}, 'end' {lane}, 'head', 'select', 'focus'. */

import { Lane } from './fold.js';
import { shown } from './trace.js';

export class Race extends EventTarget {
  constructor() {
    super();
    this.clear();
  }

  clear(meta = {}) {
    this.lanes = new Map();
    this.meta = meta;       // {source: 'live' | 'recorded', question, machine, shown: [{name, frames: [url]}]}
    this.head = null;       // seconds on every lane's own clock that are shown; null: everything there is
    this.focus = null;      // name of the lane that the tree and the charts show
    this.selected = null;   // {lane, token} or {lane, round}
    this.emit('reset');
  }

  emit(type, detail = {}) { this.dispatchEvent(new CustomEvent(type, { detail })); }

  on(types, fn) { for (const type of types.split(' ')) this.addEventListener(type, (e) => fn(e.detail, type)); }

  /** Take one record, as it stands in a trace. */
  take(record) {
    if (record.kind === 'begin') {
      const lane = new Lane(record);
      lane.number = this.lanes.size;
      if (record.notes.media) this.meta.shown = shown(record);
      this.lanes.set(lane.name, lane);
      if (this.focus === null || this.lanes.get(this.focus).begin.method === 'ar') this.focus = lane.name;
      this.emit('lane', { lane });
      return;
    }
    const lane = this.lanes.get(record.lane);
    if (!lane) return;
    if (record.kind === 'round') {
      lane.add(record);
      this.emit('round', { lane });
    } else {
      lane.close(record);
      this.emit('end', { lane });
    }
  }

  get list() { return [...this.lanes.values()]; }

  get focused() { return this.lanes.get(this.focus) ?? null; }

  /** The plain autoregressive lane, against which the others are measured; null where the race has none. */
  get baseline() { return this.list.find((lane) => lane.begin.method === 'ar') ?? null; }

  /** Rounds of a lane that are shown now. */
  shown(lane) { return this.head === null ? lane.rounds.length : lane.roundsBy(this.head); }

  /** Totals of a lane as shown now. */
  now(lane) { return lane.at(this.shown(lane)); }

  /** Decode speed of a lane over the baseline's, both as shown now; null without a baseline. */
  speedup(lane) {
    const base = this.baseline;
    if (!base) return null;
    const a = this.now(lane).speed;
    const b = this.now(base).speed;
    return a && b ? a / b : null;
  }

  /** A lane is over when its last round is shown. */
  over(lane) { return lane.end !== null && this.shown(lane) === lane.rounds.length; }

  get finished() { return this.lanes.size > 0 && this.list.every((lane) => this.over(lane)); }

  /** Lane names in the order in which they came in, by their own clocks. */
  get order() {
    return this.list.filter((lane) => this.over(lane) && lane.end.stop !== 'cancelled' && lane.end.stop !== 'error')
      .sort((a, b) => a.at(Infinity).clock - b.at(Infinity).clock).map((lane) => lane.name);
  }

  /** The longest clock of all lanes. */
  get length() { return Math.max(0, ...this.list.map((lane) => lane.at(Infinity).clock)); }

  setHead(seconds) {
    this.head = seconds;
    this.emit('head');
  }

  setFocus(name) {
    if (!this.lanes.has(name) || name === this.focus) return;
    this.focus = name;
    this.selected = null;
    this.emit('focus');
  }

  /** Select a token of a lane (its round comes with it) or a whole round; null lets the page follow the race. */
  select(choice) {
    const moved = choice !== null && choice.lane !== this.focus;
    if (moved) this.focus = choice.lane;
    this.selected = choice;
    if (moved) this.emit('focus');
    this.emit('select');
  }

  /** The round that the tree shows: the selected one, else the newest shown of the focused lane. */
  get currentRound() {
    const lane = this.focused;
    if (!lane || !lane.rounds.length) return null;
    const s = this.selected;
    if (s && s.lane === lane.name) {
      const index = s.token !== undefined ? lane.tokens[s.token]?.round : s.round;
      if (lane.rounds[index]) return lane.rounds[index];
    }
    return lane.rounds[Math.max(0, this.shown(lane) - 1)];
  }
}
