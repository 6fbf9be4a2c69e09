/* The race over the whole screen, for a room: all lanes on one clock in large type, in the leader's
   text the place that the plain lane has reached, the trees of the rounds beneath. Played by keys. */

import { backClosesDialog } from './back.js';
import { button, h, iconButton, put } from './dom.js';
import { Strip } from './strip.js';
import { laid } from '../records/text.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

/** @import { Painter } from './paint.js' */
/** @import { Replay } from '../state/replay.js' */

const FEW = 3; // lanes whose type is as large as a story's

export class Chase {
  /** @param {Replay} replay @param {Painter} painter */
  constructor(replay, painter) {
    const { race } = replay;
    this.replay = replay;
    this.race = race;
    /** Of each lane: its elements of text, and how many of them are shown. */
    this.rows = [];
    this.ghost = h('b.vl-badge', W.chase.ghost);
    this.lanes = h('div.vl-chase');
    this.question = h('p');
    this.clock = h('output.vl-time');
    this.strip = new Strip(race, painter);
    const tools = [
      button(W.chase.start, () => replay.scrub(0), 'vl-secondary'),
      button(W.story.back, () => replay.turn(-1), 'vl-secondary'),
      (this.toggle = button(W.story.play, () => replay.toggle(), 'vl-secondary')),
      button(W.story.next, () => replay.turn(1), 'vl-secondary'),
      this.clock,
      h('span.vl-help.vl-keys', W.chase.keys),
      button(W.close, () => this.node.close(), 'vl-secondary'),
    ];
    const more = { 'aria-label': W.chase.title, on: { keydown: (e) => this.key(e) } };
    const beneath = h('div', { style: { zoom: 1.6 } }, this.strip.node);
    const parts = [h('div.vl-story-head', this.question), this.lanes];
    this.node = h('dialog.vl-story', more, h('div.vl-story-stage', parts), beneath);
    this.node.append(h('div.vl-story-tools', tools));
    this.entered = backClosesDialog(this.node);
    this.node.addEventListener('close', () => {
      replay.finish();
      document.exitFullscreen?.().catch(() => null);
    });
    document.addEventListener('fullscreenchange', () => {
      if (!document.fullscreenElement) this.node.close();
    });
    this.draw = this.draw.bind(this);
    race.on('head', () => this.node.open && painter.soon(this.draw));
    replay.on('change', () => {
      put(this.toggle, replay.playing ? W.story.pause : W.story.play);
    });
  }

  /** What opens it, there while a finished race is on the page. */
  button() {
    const node = iconButton('screen', W.chase.open, () => this.open());
    this.race.on('reset lane end', () => {
      node.hidden = !this.race.list.length || !this.race.ended;
    });
    return node;
  }

  async open() {
    const { race, replay } = this;
    put(this.question, race.meta.question ?? '');
    this.rows = race.list.map((lane) => this.row(lane));
    this.lanes.replaceChildren(...this.rows.map(({ head, text }) => h('div', head, text)));
    this.lanes.classList.toggle('many', race.list.length > FEW);
    await document.documentElement.requestFullscreen?.().catch(() => null);
    this.node.showModal();
    this.entered();
    replay.replay();
    this.toggle.focus();
  }

  row(lane) {
    const parts = lane.pieces.map((piece) =>
      h('span', { class: `tk ${lane.kind(piece)}`, hidden: true, text: laid(piece.text) }),
    );
    const size = this.race.list.length > FEW ? '2.2vw' : '3vw';
    const text = h(
      'p.vl-story-text',
      { style: { 'font-size': `clamp(18px, ${size}, 44px)` } },
      parts,
    );
    const facts = h('span.vl-facts', { style: { 'font-size': 'inherit' } });
    const style = { '--lane': `var(--vl-lane-${lane.colour})` };
    const head = h('div.vl-story-head', { style }, h('i.vl-swatch'), h('b', lane.title), facts);
    return { lane, parts, text, head, facts, shown: 0 };
  }

  draw() {
    const { race } = this;
    const { baseline } = race;
    const far = ({ lane }) => race.now(lane).n_tokens;
    for (const row of this.rows) {
      const { lane, parts } = row;
      const shown = lane.whole[race.shown(lane)];
      for (let i = Math.min(shown, row.shown); i < Math.max(shown, row.shown); i += 1)
        parts[i].hidden = i >= shown;
      row.shown = shown;
      const x = lane === baseline ? null : race.speedup(lane);
      put(row.facts, W.chase.far(far(row), race.over(lane), x && fmt.times(x)));
      row.text.scrollTop = row.text.scrollHeight;
    }
    const leader = this.rows.reduce((a, b) => (far(b) > far(a) ? b : a));
    const reached = baseline ? race.now(baseline).n_tokens : 0;
    const before =
      leader.lane === baseline ? null : leader.parts[leader.lane.tokens[reached]?.piece];
    if (!before || before.hidden) this.ghost.remove();
    else if (before.previousSibling !== this.ghost) before.before(this.ghost);
    put(this.clock, fmt.seconds(race.head ?? race.length));
  }

  key(event) {
    const { replay } = this;
    const does = {
      ' ': () => replay.toggle(),
      Home: () => replay.scrub(0),
      ArrowLeft: () => replay.turn(-1),
      PageUp: () => replay.turn(-1),
      ArrowRight: () => replay.turn(1),
      PageDown: () => replay.turn(1), // what a presenter's remote sends
    }[event.key];
    if (!does || (event.key === ' ' && event.target.closest('button'))) return;
    event.preventDefault();
    does();
  }
}
