/* Replays a race: moves its head along the lanes' clocks, at their speed or slowly enough for an eye. */

import { Emitter } from './emitter.js';
import { point } from '../records/highlights.js';

const SHOW_S = 8; // how long a stretched replay lasts
const WATCHABLE_S = 6; // longer races are shown at their own speed

/** @extends {Emitter<ReplayEvents>} */
export class Replay extends Emitter {
  stretched = true;
  playing = false;
  /** When the last frame was. @type {number | null} */
  last = null;

  /** @param {Race} race */
  constructor(race) {
    super();
    this.race = race;
    race.on('reset', () => {
      this.pause();
      this.setStretched(true);
    });
  }

  /** How many times slower than the race a stretched replay is. */
  get stretch() {
    const { duration } = this.race;
    return duration >= WATCHABLE_S || !duration ? 1 : SHOW_S / duration;
  }

  /** Play from the start. */
  replay() {
    this.setStretched(true);
    this.race.setHead(0);
    this.play();
  }

  /** @param {boolean} on */
  setStretched(on) {
    this.stretched = on;
    this.pace();
    this.emit('change');
  }

  /** Tell the race how much slower than it was it is shown. */
  pace() {
    this.race.slower = this.stretched ? this.stretch : 1;
  }

  /** Follow the head. */
  letGo() {
    if (this.race.selected) this.race.select(null);
  }

  /** Play on from the head, at the end from the start. */
  play() {
    this.letGo();
    if (this.race.head === null || this.race.head >= this.race.duration) this.race.setHead(0);
    this.playing = true;
    this.last = null;
    this.pace();
    this.emit('change');
    requestAnimationFrame(this.step);
  }

  pause() {
    this.playing = false;
    this.emit('change');
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  /** Move the head by rounds of the lane in focus, behind its last one by as much time as one of them took.
   *  @param {number} by */
  turn(by) {
    const { duration, focused: lane, head } = this.race;
    if (!lane?.rounds.length) return;
    const { length } = lane.rounds;
    const { clock_s: end } = lane.totalsAfter(length);
    const to = Math.max(0, this.race.roundsShown(lane) + by);
    const now = head ?? duration;
    const behind = to > length || (by < 0 && now > end);
    const next = behind ? Math.max(end, now + (by * end) / length) : lane.totalsAfter(to).clock_s;
    this.pause();
    this.letGo();
    this.race.setHead(next < duration ? next : null);
  }

  /** Show the race to its end. */
  finish() {
    this.playing = false;
    this.race.setHead(null);
    point(this.race);
  }

  /** Rest at a place in the race. @param {number} part of it */
  scrub(part) {
    this.playing = false;
    this.letGo();
    this.pace();
    this.race.setHead(part * this.race.duration);
  }

  /** @param {number} now */
  step = (now) => {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : (now - this.last) / 1000;
    this.last = now;
    const head = (this.race.head ?? 0) + passed / this.race.slower;
    if (head >= this.race.duration) this.finish();
    else {
      this.race.setHead(head);
      requestAnimationFrame(this.step);
    }
  };
}
