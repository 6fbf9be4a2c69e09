/* Plays, pauses and scrubs a replay (state/replay.js), and sets its speed. */

import { button, h, put, icon, iconButton } from './dom.js';
import { W, fmt } from '../words/words.js';

/** @import { Replay } from '../state/replay.js' */

const STEPS = 1000; // of the slider

/** The controls of a replay. */
export class Player {
  /** @param {Replay} replay */
  constructor(replay) {
    const { race } = replay;
    this.replay = replay;
    this.button = iconButton('play', W.player.play, () => replay.toggle(), 'vl-round');
    const input = () => replay.scrub(Number(this.slider.value) / STEPS);
    const range = { type: 'range', min: 0, max: STEPS, value: 0, 'aria-label': W.player.slider };
    this.slider = h('input', { ...range, on: { input } });
    this.time = h('output.vl-time');
    const turn = () => replay.setStretched(!replay.stretched);
    this.speed = button('', turn, 'vl-small vl-speed', { title: W.player.speedHelp });
    const props = { hidden: true, role: 'group', 'aria-label': W.player.title };
    this.node = h('div.vl-player', props, this.button, this.slider, this.time, this.speed);
    replay.on('change', () => this.show());
    race.on('reset end head lane begin', () => this.show());
    this.show();
  }

  /** Bring the controls in line with the replay. */
  show() {
    const { playing, race, stretch, stretched } = this.replay;
    const ready = race.duration > 0 && race.ended;
    this.node.hidden = !ready;
    if (!ready) return;
    const head = race.head ?? race.duration;
    this.slider.value = Math.round((STEPS * head) / race.duration);
    this.slider.setAttribute('aria-valuetext', fmt.seconds(head));
    put(this.time, `${head.toFixed(2)} / ${race.duration.toFixed(2)} s`);
    put(this.speed, stretched ? W.player.shown(stretch) : W.player.trueSpeed);
    this.speed.hidden = stretch === 1;
    if (this.drawn === playing) return;
    this.drawn = playing;
    const does = playing ? 'pause' : 'play';
    this.button.replaceChildren(icon(does));
    this.button.title = this.button.ariaLabel = W.player[does];
  }
}
