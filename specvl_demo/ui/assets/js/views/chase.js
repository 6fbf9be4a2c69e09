/* The race over the whole screen, for a room: all lanes on one clock, in the leader's text the place of the plain
   lane. */

import { overScreen, tool } from './back.js';
import { h, iconButton, put } from './dom.js';
import { Strip } from './strip.js';
import { laid } from '../records/text.js';
import { W, fmt } from '../words/words.js';

const FEW = 3; // lanes whose type is as large as a story's

export class Chase {
  rows = [];

  /** @param {Replay} replay @param {Painter} painter */
  constructor(replay, painter) {
    const { race } = replay;
    this.replay = replay;
    this.race = race;
    this.ghost = h('b.vl-badge', W.chase.ghost);
    this.lanes = h('div.vl-chase');
    this.question = h('p');
    this.clock = h('output.vl-time');
    this.strip = new Strip(race, painter);
    const back = () => replay.turn(-1);
    const on = () => replay.turn(1);
    const start = () => replay.scrub(0);
    const play = () => replay.toggle();
    this.toggle = tool(W.story.play, play);
    const tools = [
      tool(W.chase.start, start),
      tool(W.story.back, back),
      this.toggle,
      tool(W.story.next, on),
      this.clock,
    ];
    const beneath = h('div', { style: { zoom: 1.6 } }, this.strip.node);
    const head = h('div.vl-story-head', this.question);
    const parts = [h('div.vl-story-stage', head, this.lanes), beneath];
    const steps = { ArrowLeft: back, PageUp: back, ArrowRight: on, PageDown: on };
    const moves = { ...steps, Home: start, ' ': play };
    const screen = overScreen(W.chase, moves, parts, tools);
    this.node = screen.dialog;
    this.fill = screen.fill;
    this.node.addEventListener('close', () => replay.finish());
    race.on('head', () => this.node.open && painter.soon(this.draw));
    replay.on('change', () => {
      put(this.toggle, replay.playing ? W.story.pause : W.story.play);
    });
  }

  /** The button that opens it, there while a finished race is on the page. */
  button() {
    const node = iconButton('screen', W.chase.open, () => this.open());
    this.race.on('reset lane end', () => {
      node.hidden = !this.race.whole;
    });
    return node;
  }

  /** Put the race's lanes into the dialog, open it and play. */
  async open() {
    const { race, replay } = this;
    put(this.question, race.meta.question ?? '');
    this.rows = race.list.map((lane) => this.row(lane));
    this.lanes.replaceChildren(...this.rows.map(({ head, text }) => h('div', head, text)));
    this.lanes.classList.toggle('many', race.list.length > FEW);
    await this.fill();
    replay.replay();
    this.toggle.focus();
  }

  /** A lane's answer, its words hidden until the replay reaches them. */
  row(lane) {
    const parts = lane.pieces.map((piece) =>
      h(`span.tk.${lane.kind(piece)}`, { hidden: true, text: laid(piece.text) }),
    );
    const width = this.race.list.length > FEW ? '2.2vw' : '3vw';
    const size = { 'font-size': `clamp(18px, ${width}, 44px)` };
    const text = h('p.vl-story-text', { style: size }, parts);
    const facts = h('span.vl-facts', { style: { 'font-size': 'inherit' } });
    const style = { '--lane': `var(--vl-lane-${lane.colour})` };
    const head = h('div.vl-story-head', { style }, h('i.vl-swatch'), h('b', lane.title), facts);
    return { lane, parts, text, head, facts, shown: 0 };
  }

  /** Show as many words as the replay has reached, and in the leader's text where AR is. */
  draw = () => {
    const { race } = this;
    const { baseline } = race;
    const far = ({ lane }) => race.now(lane).n_tokens;
    for (const row of this.rows) {
      const { lane, parts } = row;
      const shown = lane.whole[race.roundsShown(lane)];
      for (let i = Math.min(shown, row.shown); i < Math.max(shown, row.shown); i += 1)
        parts[i].hidden = i >= shown;
      row.shown = shown;
      const x = lane === baseline ? null : race.speedup(lane);
      put(row.facts, W.chase.far(far(row), race.over(lane), x && fmt.times(x)));
      row.text.scrollTop = row.text.scrollHeight;
    }
    const leader = this.rows.reduce((a, b) => (far(b) > far(a) ? b : a));
    const reached = baseline ? race.now(baseline).n_tokens : 0;
    const before = leader.lane !== baseline && leader.parts[leader.lane.tokens[reached]?.piece];
    if (!before || before.hidden) this.ghost.remove();
    else if (before.previousSibling !== this.ghost) before.before(this.ghost);
    put(this.clock, fmt.seconds(race.head ?? race.duration));
  };
}
