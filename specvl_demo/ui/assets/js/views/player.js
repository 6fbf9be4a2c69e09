/* Plays, pauses and scrubs a replay (state/replay.js), and sets its speed. */

import { button, h, put, icon, iconButton, slider } from './dom.js';
import { W, fmt } from '../words/words.js';

const STEPS = 1000; // of the slider

export class Player {
  /** @param {Replay} replay */
  constructor(replay) {
    this.replay = replay;
    this.button = iconButton('play', W.player.play, () => replay.toggle(), 'vl-round');
    this.slider = slider(W.player.slider, STEPS, (step) => replay.scrub(step / STEPS));
    this.time = h('output.vl-time');
    const turn = () => replay.setStretched(!replay.stretched);
    this.speed = button('', turn, 'vl-small vl-speed', { title: W.player.speedHelp });
    const props = { hidden: true, role: 'group', 'aria-label': W.player.title };
    this.node = h('div.vl-player', props, this.button, this.slider, this.time, this.speed);
    replay.on('change', () => this.show());
    replay.race.on('reset end head lane begin', () => this.show());
    this.show();
  }

  show() {
    const { playing, race, stretch, stretched } = this.replay;
    const { duration } = race;
    this.node.hidden = !(duration > 0 && race.ended);
    if (this.node.hidden) return;
    const head = race.head ?? duration;
    this.slider.value = Math.round((STEPS * head) / duration);
    this.slider.setAttribute('aria-valuetext', fmt.seconds(head));
    put(this.time, `${head.toFixed(2)} / ${duration.toFixed(2)} s`);
    put(this.speed, stretched ? W.player.shown(stretch) : W.player.trueSpeed);
    this.speed.hidden = stretch === 1;
    if (this.drawn === playing) return;
    this.drawn = playing;
    const does = playing ? 'pause' : 'play';
    this.button.replaceChildren(icon(does));
    this.button.title = this.button.ariaLabel = W.player[does];
  }
}
