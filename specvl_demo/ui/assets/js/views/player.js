/* Shows a finished race again, from its record: stretched so that an eye can follow it, or at its true speed; play,
   pause, scrub. Moves the race's head along the lanes' own clocks; the views do the rest. */

import { button, h, put, icon, fmt, iconButton } from './dom.js';
import { W } from '../words/words.js';

const SHOW_S = 8; // so long a stretched replay lasts
const WATCHABLE_S = 6; // races that last so long are shown as they were, never faster
const VISIBLE_S = 0.3; // rounds that take less on screen are shown whole

export class Player {
  constructor(race) {
    this.race = race;
    this.stretched = true;
    this.playing = false;
    this.step = this.step.bind(this);
    this.button = iconButton('play', W.player.play, () => this.toggle(), 'vl-round');
    this.slider = h('input', {
      type: 'range',
      min: 0,
      max: 1000,
      value: 0,
      'aria-label': W.player.slider,
      on: { input: () => this.scrub(Number(this.slider.value) / 1000) },
    });
    this.time = h('output.vl-time');
    const turn = () => this.setStretched(!this.stretched);
    this.speed = button('', turn, 'vl-small vl-speed', { title: W.player.speedHelp });
    const props = { hidden: true, role: 'group', 'aria-label': W.player.title };
    this.node = h('div.vl-player', props, this.button, this.slider, this.time, this.speed);
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

  play() {
    if (this.race.head === null || this.race.head >= this.race.length) this.race.setHead(0);
    this.playing = true;
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

  step(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : (now - this.last) / 1000;
    this.last = now;
    const head = (this.race.head ?? 0) + passed * this.rate;
    if (head >= this.race.length) this.finish();
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
    put(this.speed, this.stretched ? W.player.shown(this.stretch) : W.player.trueSpeed);
    this.speed.hidden = this.stretch === 1;
    if (this.drawn !== this.playing) {
      this.drawn = this.playing;
      const does = this.playing ? 'pause' : 'play';
      this.button.replaceChildren(icon(does));
      this.button.title = this.button.ariaLabel = W.player[does];
    }
  }
}
