/* The race that the page shows: its lanes, how far each is shown, what is selected. */

import { coloursOf } from './colours.js';
import { Emitter } from './emitter.js';
import { Lane } from '../records/fold.js';
import { shown } from '../records/trace.js';

const VISIBLE_S = 0.3; // rounds that take less on screen are shown whole

/** @extends {Emitter<RaceEvents>} */
export class Race extends Emitter {
  /** By name. @type {Map<string, Lane>} */
  lanes = new Map();
  /** @type {Meta} */
  meta = {};
  load = 0; // share of the machine that other programs use
  /** Seconds on every lane's own clock that are shown; null: all there are. @type {number | null} */
  head = null;
  slower = 1; // how many times slower than it was a replay shows it
  /** The name of the lane that tree and charts show. @type {string | null} */
  focus = null;
  /** @type {Selected | null} */
  selected = null;
  chosen = false; // whether the visitor picked that lane

  /** @param {Rules} [rules] */
  constructor(rules = { tokens: 0, load: 1, drafts: 0 }) {
    super();
    this.rules = rules;
  }

  /** @param {Meta} meta of a race without lanes yet */
  clear(meta = {}) {
    this.lanes = new Map();
    this.meta = meta;
    this.load = 0;
    this.head = this.focus = this.selected = null;
    this.chosen = false;
    this.emit('reset');
  }

  /** @param {AnyRecord[]} records @param {Meta} [meta] */
  show(records, meta) {
    this.clear(meta);
    for (const record of records) this.take(record);
  }

  /** Open lanes, which are pending until their Begin comes.
   *  @param {Method[]} methods @param {number} most tokens of an answer */
  expect(methods, most) {
    for (const { name: method, title, lossless } of methods) {
      const known = { lane: method, method, title, lossless, max_new_tokens: most };
      const begin = /** @type {any} */ ({ ...known, models: {}, spans: [], seen: [], charts: [] });
      this.open(begin).pending = true;
    }
  }

  /** @param {AnyRecord} record */
  take(record) {
    if (record.kind === 'remarks') {
      this.meta.compared = record;
      this.emit('compared');
    } else if (record.kind === 'begin') this.begin(record);
    else this.goOn(record);
  }

  /** Take in a Begin, also of a pending lane. @param {Begin} record */
  begin(record) {
    if (record.notes?.media?.length) this.meta.shown = shown(record);
    const lane = this.lanes.get(record.lane);
    if (!lane) {
      this.open(record);
      return;
    }
    lane.begin = record;
    lane.pending = false;
    this.nameLanes();
    this.emit('begin', { lane });
  }

  /** Take in what follows a Begin. @param {Round | End} record */
  goOn(record) {
    const lane = this.lanes.get(record.lane);
    if (!lane) return;
    if (record.kind === 'end') {
      lane.close(record);
      this.emit('end', { lane });
      return;
    }
    lane.add(record);
    this.emit('round', { lane });
    if (record.notes?.load === undefined) return;
    this.load = Number(record.notes.load);
    this.emit('load');
  }

  /** Add a lane. @param {Begin} begin */
  open(begin) {
    const lane = new Lane(begin);
    lane.number = this.lanes.size;
    this.lanes.set(lane.name, lane);
    this.nameLanes();
    // The first rival; once all is compared, `point` moves on to the best.
    if (!this.focused || this.focused.plain) this.focus = lane.name;
    this.emit('lane', { lane });
    return lane;
  }

  /** Name lanes after their methods, without settings. */
  nameLanes() {
    const colours = coloursOf(this.list.map((lane) => lane.begin.method));
    this.list.forEach((lane, i) => {
      lane.colour = colours[i];
      [lane.title] = lane.begin.title.split(', ');
    });
  }

  get list() {
    return [...this.lanes.values()];
  }

  /** What it is found by: the id of an example, or of its request. */
  get name() {
    return this.meta.example ?? this.list[0]?.begin.request;
  }

  /** Whether the lanes known so far have ended. */
  get ended() {
    return this.list.every((lane) => lane.end);
  }

  /** Whether nothing more comes. */
  get whole() {
    return this.lanes.size > 0 && this.ended;
  }

  get focused() {
    return this.lanes.get(this.focus ?? '') ?? null;
  }

  get baseline() {
    return this.list.find((lane) => lane.plain) ?? null;
  }

  get rivals() {
    return this.list.filter((lane) => lane !== this.baseline);
  }

  /** @param {Lane} lane */
  roundsShown(lane) {
    return this.head === null ? lane.rounds.length : lane.roundsBy(this.head);
  }

  /** Whether a replay is slow enough to show what happens within a round. */
  get slow() {
    const rounds = Math.max(1, ...this.rivals.map((lane) => lane.rounds.length));
    return (this.slower * this.duration) / rounds >= VISIBLE_S;
  }

  /** The round that a slow replay is in, and the shares that are drafted and verified. @param {Lane} lane */
  making(lane) {
    const shownRounds = this.roundsShown(lane);
    const round = lane.rounds[shownRounds];
    if (this.head === null || !round || !this.slow) return null;
    const began = lane.rounds[shownRounds - 1]?.clock_s ?? 0;
    const since = this.head / lane.stretch - began;
    if (since < 1e-9 && shownRounds) return null; // it rests between two
    const rest = round.clock_s - began - round.draft_s;
    /** @param {number} done @param {number} all */
    const part = (done, all) => (all > 0 ? Math.min(1, Math.max(0, done / all)) : 1);
    return {
      round,
      drafted: part(since, round.draft_s),
      verified: since < round.draft_s ? 0 : part(since - round.draft_s, rest),
    };
  }

  /** The totals as far as the lane is shown. @param {Lane} lane */
  now(lane) {
    return lane.totalsAfter(this.roundsShown(lane));
  }

  /** A lane's speed over the baseline's, as both are shown. @param {Lane} lane */
  speedup(lane) {
    const a = this.now(lane).tokens_per_s;
    const b = this.baseline && this.now(this.baseline).tokens_per_s;
    return a && b ? a / b : null;
  }

  /** Whether it is shown to its end. @param {Lane} lane */
  over(lane) {
    return lane.end !== null && this.roundsShown(lane) === lane.rounds.length;
  }

  /** Whether every lane is shown to its end. */
  get finished() {
    return this.lanes.size > 0 && this.list.every((lane) => this.over(lane));
  }

  /** The lane that a follow-up continues: AR's if complete, else the lossless one that wrote most, or the only one. */
  get followed() {
    const base = this.baseline;
    if (base?.complete) return base;
    const written = this.list.filter(
      (lane) => (lane.begin.lossless || this.list.length === 1) && lane.text.trim(),
    );
    return written.sort((a, b) => b.tokens.length - a.tokens.length)[0] ?? null;
  }

  get duration() {
    return Math.max(0, ...this.list.map((lane) => lane.totalsAfter(Infinity).clock_s));
  }

  /** @param {number | null} seconds */
  setHead(seconds) {
    this.head = seconds;
    this.emit('head');
  }

  /** @param {string | undefined} name @param {boolean} chosen by the visitor */
  setFocus(name, chosen = true) {
    this.chosen ||= chosen;
    if (!name || !this.lanes.has(name) || name === this.focus) return;
    this.focus = name;
    this.selected = null;
    this.emit('focus');
  }

  /** null lets the page follow the race. @param {Selected | null} choice */
  select(choice) {
    this.chosen ||= Boolean(choice?.picked);
    const moved = choice !== null && choice.lane !== this.focus;
    if (moved) this.focus = choice.lane;
    this.selected = choice;
    if (moved) this.emit('focus');
    this.emit('select');
  }

  /** @param {Lane} lane @param {Omit<Selected, 'lane'>} part that the visitor picked */
  pick(lane, part) {
    this.select({ lane: lane.name, ...part, picked: true });
  }

  /** The selected round in focus, else the one on its way or the newest shown. */
  get currentRound() {
    const { focused: lane, selected } = this;
    if (!lane || !lane.rounds.length) return null;
    const { token, round } = selected?.lane === lane.name ? selected : {};
    const index = token === undefined ? round : lane.tokens[token]?.round;
    const now = this.making(lane)?.round ?? lane.rounds[Math.max(0, this.roundsShown(lane) - 1)];
    return lane.rounds[index ?? -1] ?? now;
  }
}
