/* The answers side by side, one a lane; of a branch, the one that it was taken from before them. */

import { button, h } from './dom.js';
import { LaneView } from './lane.js';
import { MOST_TEXT, laid, shown } from '../records/text.js';
import { W } from '../words/words.js';

export class Answers {
  /** By name. @type {Map<string, LaneView>} */
  lanes = new Map();

  /** onback(): show the race from which branches were taken.
   *  @param {Race} race @param {Painter} painter @param {() => void} onback */
  constructor(race, painter, onback) {
    this.race = race;
    this.painter = painter;
    this.onback = onback;
    this.node = h('div.vl-lanes');
    this.node.addEventListener('scroll', (e) => this.scrollAlike(e.target), true);
    race.on('reset', () => {
      this.lanes.clear();
      this.node.replaceChildren(...this.original());
    });
    race.on('lane', ({ lane }) => this.add(lane));
    race.on('begin', ({ lane }) => {
      const view = this.lanes.get(lane.name);
      view.begun();
      view.update();
    });
    race.on('round end', ({ lane }) => this.lanes.get(lane.name)?.update());
    race.on('head select focus', (_, type) => {
      for (const view of this.lanes.values()) view.update(type !== 'head');
    });
    race.on('lane focus', () => this.markBeside());
  }

  /** @param {Lane} lane */
  add(lane) {
    const view = new LaneView(this.race, lane, this.painter);
    this.lanes.set(lane.name, view);
    this.node.append(view.node);
    this.node.dataset.count = String(this.node.children.length);
  }

  /** Once the race is over, scroll the other answers as far as this one. */
  scrollAlike(scrolled) {
    if (this.race.head !== null || !this.race.finished) return;
    for (const { box } of this.lanes.values())
      if (box !== scrolled && box.scrollTop !== scrolled.scrollTop)
        box.scrollTop = scrolled.scrollTop;
  }

  /** The answer from which a branch was taken, with the position where it leaves it. */
  original() {
    const { branch } = this.race.meta;
    if (!branch) return [];
    const { lane, before, chosen, taken, after } = branch;
    const fork = h('b.vl-fork', { title: W.branch.fork(shown(taken)), text: laid(chosen) });
    const words = [laid(before, MOST_TEXT), fork, laid(after, MOST_TEXT)];
    return [
      h(
        'section.vl-lane.vl-original.done',
        { 'aria-label': W.branch.title(lane) },
        h('header', h('b', W.branch.title(lane)), button(W.branch.back, this.onback)),
        h('div.vl-text', { tabindex: '0' }, h('div.vl-words', words)),
      ),
    ];
  }

  /** Mark the lanes that stand side by side on a phone: the plain one and the one in focus, else
   *  the last. */
  markBeside() {
    const { race } = this;
    const other = race.rivals.find((lane) => lane === race.focused) ?? race.rivals.at(-1);
    for (const [name, { node }] of this.lanes)
      node.classList.toggle('beside', [race.baseline?.name, other?.name].includes(name));
  }
}
