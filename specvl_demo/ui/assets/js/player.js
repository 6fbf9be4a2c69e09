/* Shows a finished race again, from its record: stretched so that an eye can follow it, or at its true speed; play,
   pause, scrub, step round by round. Moves the race's head along the lanes' own clocks; the views do the rest. */

import { h, put, icon, fmt, iconButton } from './dom.js';
import { W } from './words.js';

const SHOW_S = 8; // so long a stretched replay lasts
const WATCHABLE_S = 6; // races that last so long are shown as they were, never faster
const STEP_S = 1.6; // so long one round takes when it is stepped through
const VISIBLE_S = 0.3; // rounds that take less on screen are shown whole

export class Player {
  constructor(race) {
    this.race = race;
    this.stretched = true;
    this.playing = false;
    this.step = this.step.bind(this);
    const tool = (name, text, fn) => iconButton(name, text, fn, 'vl-round');
    this.button = tool('play', W.player.play, () => this.toggle());
    this.back = tool('back', W.player.back, () => this.stepBack());
    this.next = tool('next', W.player.next, () => this.stepNext());
    this.slider = h('input', {
      type: 'range',
      min: 0,
      max: 1000,
      value: 0,
      'aria-label': W.player.slider,
      on: { input: () => this.scrub(Number(this.slider.value) / 1000) },
    });
    this.time = h('output.vl-time');
    this.speed = h('button.vl-small.vl-speed', {
      title: W.player.speedHelp,
      on: { click: () => this.setStretched(!this.stretched) },
    });
    this.node = h(
      'div.vl-player',
      { hidden: true, role: 'group', 'aria-label': W.player.title },
      this.back,
      this.button,
      this.next,
      this.slider,
      this.time,
      this.speed,
    );
    race.on('reset', () => {
      this.pause();
      this.setStretched(true);
    });
    race.on('reset end head lane begin', () => this.show());
    this.show();
  }

  /** How many times slower than it was a race is shown where it is stretched; never faster. */
  get stretch() {
    const { length } = this.race;
    return length >= WATCHABLE_S || !length ? 1 : SHOW_S / length;
  }

  /** From the start, like an unseen race. */
  replay() {
    if (this.race.selected) this.race.select(null);
    this.setStretched(true);
    this.race.setHead(0);
    this.play();
  }

  setStretched(on) {
    this.stretched = on;
    this.pace();
    this.show();
  }

  pace() {
    const { race } = this;
    this.rate = this.stretched ? 1 / this.stretch : 1;
    const rounds = Math.max(
      1,
      ...race.list.map((lane) => (lane.begin.method === 'ar' ? 0 : lane.rounds.length)),
    );
    race.slower = 1 / this.rate;
    race.slow = race.length / rounds / this.rate >= VISIBLE_S;
  }

  play(until = null) {
    if (this.race.head === null || this.race.head >= this.race.length) this.race.setHead(0);
    this.playing = true;
    this.until = until;
    this.last = null;
    this.pace();
    this.show();
    requestAnimationFrame(this.step);
  }

  pause() {
    this.playing = false;
    this.show();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  /** Show the whole race at once. */
  finish() {
    this.playing = false;
    this.race.setHead(null);
    this.race.emit('shown');
  }

  scrub(part) {
    this.playing = false;
    this.pace();
    this.race.setHead(part * this.race.length);
  }

  /** The next round of the lane in focus, as it happened: drafted, checked, kept or struck. */
  stepNext() {
    const { race } = this;
    const lane = race.focused;
    if (race.selected) race.select(null);
    if (this.playing && this.until !== null) race.setHead(this.until); // pressed again: the round on its way is over at once
    if (race.head === null || race.finished) race.setHead(0);
    const k = race.shown(lane);
    if (!lane.rounds[k]) {
      this.finish();
      return;
    }
    const until = lane.at(k + 1).clock;
    this.play(until);
    this.rate = Math.max(1e-6, (until - race.head) / STEP_S);
    race.slow = true;
  }

  stepBack() {
    const { race } = this;
    const lane = race.focused;
    this.playing = false;
    if (race.selected) race.select(null);
    const k = race.shown(lane) - (race.making(lane)?.drafted > 0 ? 0 : 1);
    race.setHead(lane.at(Math.max(0, k)).clock);
  }

  step(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : (now - this.last) / 1000;
    this.last = now;
    const head = (this.race.head ?? 0) + passed * this.rate;
    if (this.until !== null && head >= this.until) {
      this.playing = false;
      this.race.setHead(this.until);
      if (this.until >= this.race.length) this.finish();
    } else if (head >= this.race.length) this.finish();
    else {
      this.race.setHead(head);
      requestAnimationFrame(this.step);
    }
  }

  show() {
    const { race } = this;
    const ready = race.length > 0 && race.list.every((lane) => lane.end);
    this.node.hidden = !ready;
    if (!ready) return;
    const head = race.head ?? race.length;
    this.slider.value = race.length ? Math.round((1000 * head) / race.length) : 0;
    this.slider.setAttribute('aria-valuetext', fmt.seconds(head));
    put(this.time, `${head.toFixed(2)} / ${race.length.toFixed(2)} s`);
    put(this.speed, this.stretched ? W.player.slower(this.stretch) : W.player.trueSpeed);
    this.speed.hidden = this.stretch === 1;
    if (this.drawn !== this.playing) {
      this.drawn = this.playing;
      this.button.replaceChildren(icon(this.playing ? 'pause' : 'play'));
      this.button.setAttribute('aria-label', this.playing ? W.player.pause : W.player.play);
      this.button.title = this.playing ? W.player.pause : W.player.play;
    }
  }
}
