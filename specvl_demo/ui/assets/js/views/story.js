/* A finished race told over the whole screen, one sentence a press, from the records of one lane. */

import { overScreen, tool } from './back.js';
import { button, h, put } from './dom.js';
import { countDrafted, countKept, leaves, wordsOf } from '../records/fold.js';
import { headline } from './headline.js';
import { drafterInWords } from '../records/highlights.js';
import { judgedDrafts } from './lane.js';
import { MOST_TEXT, laid } from '../records/text.js';
import { stills } from './tiles.js';
import { W } from '../words/words.js';

const STEP_MS = 3500; // between two steps where the story plays by itself
const SPELT_OUT = 3; // rounds whose guesses and check are two steps; a later one is one

/** own: the text that the target added, null where it added none. */
function factsOf(round) {
  const { tree, path, tokens } = round;
  const last = tokens.at(-1);
  return {
    drafted: countDrafted(round),
    shown: judgedDrafts(round).length,
    branches: leaves(tree).length,
    kept: countKept(round),
    struck: tree.parent.includes(path.at(-1)),
    relaxed: tokens.filter(({ origin }) => origin === 'relaxed').length,
    own: last.origin === 'target' ? laid(last.text) : null,
  };
}

export class Story {
  steps = [];
  at = 0; // the step on the screen
  playing = null; // the timer of the next step, where the story goes on by itself

  /** finish(): show the race on the page to its end. */
  constructor(race, finish) {
    this.race = race;
    this.finish = finish;
    this.pictures = h('div.vl-story-pictures');
    this.question = h('p');
    this.text = h('p.vl-story-text', { tabindex: '0', 'aria-label': W.story.text });
    this.meanwhile = h('p.vl-story-text.vl-rest', { tabindex: '0' });
    this.caption = h('p.vl-story-caption', { 'aria-live': 'polite' });
    this.count = h('span.vl-help');
    const on = () => this.turn(this.at + 1);
    const back = () => this.turn(this.at - 1);
    this.back = tool(W.story.back, back);
    this.next = tool(W.story.next, on);
    this.auto = tool(W.story.play, () => this.play(!this.playing));
    const head = h('div.vl-story-head', this.pictures, this.question);
    const stage = h('div.vl-story-stage', { click: on }, head, this.text, this.meanwhile);
    const moves = {
      ...{ ArrowLeft: back, ArrowUp: back, PageUp: back, Backspace: back },
      ...{ ArrowRight: on, ArrowDown: on, PageDown: on, ' ': on, Enter: on },
      ...{ Home: () => this.turn(0), End: () => this.turn(Infinity) },
    };
    const tools = [this.back, this.count, this.next, this.auto];
    const screen = overScreen(W.story, moves, [stage, this.caption], tools);
    this.node = screen.dialog;
    this.fill = screen.fill;
    this.node.addEventListener('close', () => this.play(false));
  }

  /** Opens it, while a finished race is on the page. */
  button() {
    const node = button(W.story.open, () => this.open());
    const { race } = this;
    node.hidden = true;
    race.on('reset lane begin end', () => {
      node.hidden = !race.whole || race.list.some((lane) => !lane.rounds.length);
    });
    return node;
  }

  /** Tell the lane in focus, or else the first that drafted. */
  async open() {
    const { race } = this;
    this.finish();
    const lanes = [race.focused, ...race.list];
    this.lane = lanes.find((lane) => lane.rounds.some(countDrafted)) ?? race.focused;
    const of = (round, i) => {
      if (!countDrafted(round)) return [{ round }];
      return [...(i < SPELT_OUT ? [{ round }] : []), { round, checked: true }];
    };
    this.steps = [{}, ...this.lane.rounds.flatMap(of), { over: true }];
    this.pictures.replaceChildren(...stills(race.meta.shown));
    put(this.question, race.meta.question ?? '');
    await this.fill();
    this.go(0);
    this.next.focus();
  }

  /** Go on step by step by itself until the end, or stop doing so. */
  play(on) {
    const advance = () => {
      this.go(this.at + 1);
      this.play(true);
    };
    clearTimeout(this.playing);
    this.playing = on && this.at < this.steps.length - 1 ? setTimeout(advance, STEP_MS) : null;
    put(this.auto, this.playing ? W.story.pause : W.story.play);
  }

  /** The visitor turns to a step: the story no longer goes on by itself. */
  turn(to) {
    this.play(false);
    this.go(to);
  }

  go(to) {
    this.at = Math.min(this.steps.length - 1, Math.max(0, to));
    const step = this.steps[this.at];
    this.node.classList.toggle('first', this.at === 0);
    this.text.replaceChildren(...(this.at ? this.answer(step) : []));
    this.caption.replaceChildren(...this.says(step));
    put(this.meanwhile, this.at ? this.plainLane(step) : '');
    for (const node of [this.text, this.meanwhile]) node.scrollTop = node.scrollHeight;
    put(this.count, W.story.count(this.at + 1, this.steps.length));
    this.back.disabled = this.at === 0;
    this.next.disabled = this.at === this.steps.length - 1;
  }

  /** With what is drafted behind it; the newest words alone are coloured. */
  answer({ round, checked, over }) {
    const { given, pieces, whole, rounds } = this.lane;
    const plain = round && !countDrafted(round);
    const done = whole[over ? rounds.length : round.index + Number(plain)];
    const word = (kind, text) => h(kind ? `span.tk.${kind}` : 'span', { text });
    const coloured = (piece) => over || piece.round === round.index;
    const nodes = [
      word('', laid(given.text, MOST_TEXT)),
      ...pieces.slice(0, done).map((one) => word(coloured(one) && one.origin, laid(one.text))),
    ];
    if (over || plain) return nodes;
    for (const { text, kind } of judgedDrafts(round))
      nodes.push(word(checked ? kind : 'guess', text));
    const { own } = factsOf(round);
    return checked && own ? [...nodes, word('target', own)] : nodes;
  }

  /** What the plain lane had written by the end of this step. */
  plainLane({ round, checked, over }) {
    const { baseline } = this.race;
    if (!baseline || baseline === this.lane) return '';
    const rounds = over ? Infinity : round.index + Number(checked ?? !countDrafted(round));
    const by = baseline.roundsBy(this.lane.totalsAfter(rounds).clock_s);
    return W.story.meanwhile(laid(wordsOf(baseline.tokens.slice(0, by)), MOST_TEXT));
  }

  says({ round, checked, over }) {
    if (over) return headline(this.race);
    const { plain } = this.lane;
    const by = drafterInWords(this.lane);
    if (!round) return [plain ? W.story.plain : W.story.begin(this.lane.title, by)];
    if (!countDrafted(round)) return [plain ? W.story.step : W.story.nothing];
    const later = round.index >= SPELT_OUT;
    const facts = factsOf(round);
    return [checked ? W.story.checked(facts, later) : W.story.drafted(facts, by)];
  }
}
