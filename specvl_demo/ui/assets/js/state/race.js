/* The race that the page shows: its lanes, how far each is shown, what is selected. Views listen
   and draw. Events: 'reset', 'lane', 'begin' {lane}, 'round' {lane}, 'end' {lane}, 'head',
   'select', 'focus', 'load', 'compared', 'branch' {lane, index, id, text}: continue from another
   token than lane.tokens[index]. */

import { coloursOf } from './colours.js';
import { Lane } from '../records/fold.js';
import { shown } from '../records/trace.js';

/** A lane's description before it has begun. */
const UNKNOWN = {
  kind: 'begin',
  sampling: {},
  spans: [],
  seen: [],
  notes: {},
  models: {},
  vision_s: 0,
  prefill_s: 0,
  draft_prefill_s: 0,
};

export class Race extends EventTarget {
  /** rules: {tokens, load}, the limits of what is timed, from the catalog. */
  constructor(rules) {
    super();
    this.rules = rules;
    this.clear();
  }

  clear(meta = {}) {
    this.lanes = new Map();
    this.meta = meta; // {source: 'live' | 'ended' | 'recorded', question, machine, form, shown: [{name, frames: [url]}], compared}
    this.load = 0; // share of the machine that other programs use while it runs
    this.head = null; // seconds on every lane's own clock that are shown; null: everything there is
    this.slower = 1; // how many times slower than it was a replay shows it
    this.slow = false; // whether a replay is slow enough to show what happens within a round
    this.focus = null; // name of the lane that the tree and the charts show
    this.selected = null; // {lane, token}, {lane, round} or {lane, round, node: one that is no token of the answer}
    this.chosen = false; // whether the visitor picked the lane in focus
    this.emit('reset');
  }

  emit(type, detail = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  on(types, fn) {
    for (const type of types.split(' ')) this.addEventListener(type, (e) => fn(e.detail, type));
  }

  /** Requested lanes that have not begun: [{name, title, lossless}], in their order. */
  expect(lanes, most) {
    for (const { name, title, lossless } of lanes) {
      this.open({
        ...UNKNOWN,
        lane: name,
        method: name,
        title,
        lossless,
        max_new_tokens: most,
      }).pending = true;
    }
  }

  /** Take one record, in a trace's form. */
  take(record) {
    if (record.kind === 'begin') {
      if (record.notes.media?.length) this.meta.shown = shown(record);
      const waiting = this.lanes.get(record.lane);
      if (!waiting) {
        this.open(record);
        return;
      }
      Object.assign(waiting, { begin: record, pending: false });
      this.call();
      this.emit('begin', { lane: waiting });
      return;
    }
    if (record.kind === 'remarks') {
      this.compare(record);
      return;
    }
    const lane = this.lanes.get(record.lane);
    if (!lane) return;
    if (record.kind === 'round') {
      lane.add(record);
      this.emit('round', { lane });
      if (record.notes?.load !== undefined) {
        this.load = record.notes.load;
        this.emit('load');
      }
    } else {
      lane.close(record);
      this.emit('end', { lane });
    }
  }

  open(begin) {
    const lane = new Lane(begin);
    lane.number = this.lanes.size;
    this.lanes.set(lane.name, lane);
    this.call();
    if (this.focus === null || this.lanes.get(this.focus).begin.method === 'ar')
      this.focus = lane.name;
    this.emit('lane', { lane });
    return lane;
  }

  /** A lane is named after its method, and has its colour; its settings are added only if two would have the same name.
   *  */
  call() {
    const colours = coloursOf(this.list.map((lane) => lane.begin.method));
    this.list.forEach((lane, i) => (lane.colour = colours[i]));
    const method = (lane) => lane.begin.title.split(', ')[0];
    for (const lane of this.list) {
      const alike = this.list.filter((one) => method(one) === method(lane));
      lane.title = alike.length > 1 ? lane.begin.title : method(lane);
    }
  }

  /** How the server found that the lanes of this race, which is over, compare with AR. */
  compare(found) {
    this.meta.compared = found;
    this.emit('compared');
  }

  get list() {
    return [...this.lanes.values()];
  }

  get focused() {
    return this.lanes.get(this.focus) ?? null;
  }

  /** The plain autoregressive lane, against which the others are measured; null if the race has
   *  none. */
  get baseline() {
    return this.list.find((lane) => lane.begin.method === 'ar') ?? null;
  }

  /** Rounds of a lane that are shown now. */
  shown(lane) {
    return this.head === null ? lane.rounds.length : lane.roundsBy(this.head);
  }

  /** The round of a lane that is on its way at the moment shown, in a replay slow enough to see it: how much of it is
   *  drafted and how much is verified, 0 to 1; null where there is none. */
  making(lane) {
    const k = this.shown(lane);
    const round = lane.rounds[k];
    if (!this.slow || this.head === null || !round) return null;
    const since = this.head - lane.at(k).clock;
    const rest = round.clock_s - lane.at(k).clock - round.draft_s;
    const part = (done, all) => (all > 0 ? Math.min(1, Math.max(0, done / all)) : 1);
    return {
      round,
      drafted: part(since, round.draft_s),
      verified: since < round.draft_s ? 0 : part(since - round.draft_s, rest),
    };
  }

  /** Totals of a lane as shown now. */
  now(lane) {
    return lane.at(this.shown(lane));
  }

  /** Decode speed of a lane over the baseline's, both as shown now; null without a baseline. */
  speedup(lane) {
    const base = this.baseline;
    if (!base) return null;
    const a = this.now(lane).speed;
    const b = this.now(base).speed;
    return a && b ? a / b : null;
  }

  /** A lane is over when its last round is shown. */
  over(lane) {
    return lane.end !== null && this.shown(lane) === lane.rounds.length;
  }

  get finished() {
    return this.lanes.size > 0 && this.list.every((lane) => this.over(lane));
  }

  /** Whether a visitor's own race, of which all is known, is played back. */
  get back() {
    const known = this.meta.source === 'live' && this.list.every((lane) => lane.end);
    return known && this.head !== null;
  }

  /** The lane whose text a follow-up question continues: the autoregressive one if it is complete,
   *  else the lossless one that wrote most, which agrees with the others as far as they go, or the
   *  only one; null if none wrote anything. */
  get followed() {
    const base = this.baseline;
    if (base?.complete) return base;
    const written = this.list.filter(
      (lane) => (lane.begin.lossless || this.list.length === 1) && lane.text.trim(),
    );
    return written.reduce(
      (a, b) => (b.tokens.length > a.tokens.length ? b : a),
      written[0] ?? null,
    );
  }

  /** The longest clock of all lanes. */
  get length() {
    return Math.max(0, ...this.list.map((lane) => lane.at(Infinity).clock));
  }

  setHead(seconds) {
    this.head = seconds;
    this.emit('head');
  }

  setFocus(name, chosen = true) {
    this.chosen ||= chosen;
    if (!this.lanes.has(name) || name === this.focus) return;
    this.focus = name;
    this.selected = null;
    this.emit('focus');
  }

  /** Select a token of a lane (its round comes with it) or a whole round; null lets the page follow the race. */
  select(choice) {
    this.chosen ||= Boolean(choice?.picked);
    const moved = choice !== null && choice.lane !== this.focus;
    if (moved) this.focus = choice.lane;
    this.selected = choice;
    if (moved) this.emit('focus');
    this.emit('select');
  }

  /** The round that the tree shows: the selected one, else the one on its way or the newest shown of the focused lane. */
  get currentRound() {
    const lane = this.focused;
    if (!lane || !lane.rounds.length) return null;
    const s = this.selected;
    if (s && s.lane === lane.name) {
      const index = s.token !== undefined ? lane.tokens[s.token]?.round : s.round;
      if (lane.rounds[index]) return lane.rounds[index];
    }
    return this.making(lane)?.round ?? lane.rounds[Math.max(0, this.shown(lane) - 1)];
  }
}
