/* Where the race comes from, what was asked, the replay's controls, what it can be kept as. */

import { h, put } from './dom.js';
import { Player } from './player.js';
import { saveMenu } from './savemenu.js';
import { W } from '../words/words.js';

export class RaceHead {
  /** @param {Race} race @param {Replay} replay @param {Actions} on */
  constructor(race, replay, on) {
    this.race = race;
    this.badge = h('span.vl-badge');
    this.question = h('p.vl-question');
    this.thumbs = h('span.vl-question-media');
    this.saving = saveMenu(on.save, on.saves);
    const { node: player } = new Player(replay);
    this.node = h('div.vl-race-head', this.badge, this.thumbs, this.question, player, this.saving);
    race.on('reset', () => this.drawTitle());
    race.on('lane begin', () => this.showPictures());
    race.on('end', () => this.showOrigin());
    race.on('load lane end reset', () => {
      this.saving.hidden = !race.whole; // what is still written cannot be kept
    });
  }

  drawTitle() {
    const { machine, question, recorded, source } = this.race.meta;
    this.showOrigin();
    this.badge.title = source === 'recorded' ? W.run.recordedOn(machine, recorded) : '';
    put(this.question, source ? question || W.chat.nothing : '');
    this.thumbs.replaceChildren();
  }

  /** Write where the race comes from: recorded, a file, live, or live a moment ago. */
  showOrigin() {
    const { source, file } = this.race.meta;
    const over = this.race.whole;
    const names = {
      recorded: file ? W.run.opened : W.run.recorded,
      live: over ? W.run.yours : W.run.live,
      ended: W.run.yours,
    };
    this.badge.className = `vl-badge ${over ? '' : (source ?? '')}`;
    put(this.badge, names[source] ?? '');
  }

  showPictures() {
    const list = (this.race.meta.shown ?? []).filter((m) => m.frames[0]);
    if (list.length === this.thumbs.children.length) return;
    const picture = ({ frames, name }) => {
      const title = frames.length > 1 ? W.patches.frames(frames.length) : name;
      return h('img', { src: frames[0], alt: name, title });
    };
    this.thumbs.replaceChildren(...list.map(picture));
  }
}
