/* Replays a race: moves its head along the lanes' own clocks, stretched so that an eye can follow, or at true speed.
   Event: 'change'. */

import { Emitter } from './emitter.js';

/** @import { Race } from './race.js' */

const SHOW_S = 8; // how long a stretched replay lasts
const WATCHABLE_S = 6; // races that last this long are shown as they were, never faster
const VISIBLE_S = 0.3; // rounds that take less on screen are shown whole

/** Moves the race's head, by itself or as the visitor wants it. */
export class Replay extends Emitter {
  stretched = true;
  playing = false;
  rate = 1;
  /** When the last frame was, in milliseconds. @type {number | null} */
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

  /** By what factor a stretched replay is slower than the race was; at least 1. */
  get stretch() {
    const { duration } = this.race;
    return duration >= WATCHABLE_S || !duration ? 1 : SHOW_S / duration;
  }

  /** Play from the start, like an unseen race. */
  replay() {
    if (this.race.selected) this.race.select(null);
    this.setStretched(true);
    this.race.setHead(0);
    this.play();
  }

  /** Set whether a fast race is slowed down so that it can be followed. @param {boolean} on */
  setStretched(on) {
    this.stretched = on;
    this.pace();
    this.emit('change');
  }

  /** Work out how fast the head moves, and tell the race how slow that is. */
  pace() {
    const { race } = this;
    this.rate = this.stretched ? 1 / this.stretch : 1;
    const drafting = race.list.filter((lane) => !lane.plain);
    const rounds = Math.max(1, ...drafting.map((lane) => lane.rounds.length));
    race.slower = 1 / this.rate;
    race.slow = race.duration / rounds / this.rate >= VISIBLE_S;
  }

  /** Play on from the head, at the end from the start. */
  play() {
    if (this.race.head === null || this.race.head >= this.race.duration) this.race.setHead(0);
    this.playing = true;
    this.last = null;
    this.pace();
    this.emit('change');
    requestAnimationFrame((now) => this.step(now));
  }

  pause() {
    this.playing = false;
    this.emit('change');
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  /** Move the head to the end of the next round of the lane in focus, or of an earlier one.
   *  @param {number} by */
  turn(by) {
    const { race } = this;
    const lane = race.focused;
    if (!lane) return;
    this.pause();
    race.setHead(lane.totalsAfter(Math.max(0, race.roundsShown(lane) + by)).clock_s);
  }

  /** Show the race to its end. */
  finish() {
    this.playing = false;
    this.race.setHead(null);
    this.race.emit('shown');
  }

  /** Move the head to a place in the race, and rest there. @param {number} part of the race, 0 to
   *  1 */
  scrub(part) {
    this.playing = false;
    this.pace();
    this.race.setHead(part * this.race.duration);
  }

  /** Move the head by the time since the last frame. @param {number} now */
  step(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : (now - this.last) / 1000;
    this.last = now;
    const head = (this.race.head ?? 0) + passed * this.rate;
    if (head >= this.race.duration) this.finish();
    else {
      this.race.setHead(head);
      requestAnimationFrame((next) => this.step(next));
    }
  }
}
