/* Runs a finished race again at its true speeds: play, pause, scrub, slower and faster. Moves the race's head along
   the lanes' own clocks; the views do the rest. */

import { h, put, icon, fmt, segmented } from './dom.js';
import { W } from './words.js';

const RATES = [[0.1, '⅒×'], [0.25, '¼×'], [0.5, '½×'], [1, '1×']];
const WATCHABLE_S = 4;

export class Player {
  constructor(race) {
    this.race = race;
    this.rate = 1;
    this.playing = false;
    this.step = this.step.bind(this);
    this.button = h('button', { type: 'button', class: 'vl-round', on: { click: () => this.toggle() } });
    this.slider = h('input', { type: 'range', min: 0, max: 1000, value: 0, 'aria-label': W.player.slider,
      on: { input: () => this.scrub(Number(this.slider.value) / 1000) } });
    this.time = h('output', { class: 'vl-time' });
    this.rates = segmented(W.player.rate, RATES, 1, (rate) => { this.rate = Number(rate); });
    this.node = h('div', { class: 'vl-player', hidden: true, role: 'group', 'aria-label': W.player.title }, this.button,
      this.slider, this.time, this.rates);
    race.on('reset', () => this.pause());
    race.on('reset end head lane', () => this.show());
    this.show();
  }

  /** From the start, as a race that nobody has seen yet; slowed down where it would be over in a blink. */
  replay() {
    this.race.select(null);
    this.setRate(RATES.map(([rate]) => rate).filter((rate) => this.race.length / rate >= WATCHABLE_S).at(-1) ?? RATES[0][0]);
    this.race.setHead(0);
    this.play();
  }

  setRate(rate) {
    this.rate = rate;
    this.rates.show(rate);
  }

  play() {
    if (this.race.head === null || this.race.head >= this.race.length) this.race.setHead(0);
    this.playing = true;
    this.last = null;
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
  }

  scrub(part) {
    this.playing = false;
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
    const ready = race.lanes.size > 0 && race.list.every((lane) => lane.end);
    this.node.hidden = !ready;
    if (!ready) return;
    const head = race.head ?? race.length;
    this.slider.value = race.length ? Math.round((1000 * head) / race.length) : 0;
    this.slider.setAttribute('aria-valuetext', fmt.seconds(head));
    put(this.time, `${head.toFixed(2)} / ${race.length.toFixed(2)} s`);
    if (this.drawn !== this.playing) {
      this.drawn = this.playing;
      this.button.replaceChildren(icon(this.playing ? 'pause' : 'play'));
      this.button.setAttribute('aria-label', this.playing ? W.player.pause : W.player.play);
      this.button.title = this.playing ? W.player.pause : W.player.play;
    }
  }
}
