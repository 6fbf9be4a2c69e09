/* A finished race told over the whole screen, one sentence a press. */

import { overScreen, tool } from './back.js';
import { button, h, put, refill } from './dom.js';
import { countDrafted, countKept, leaves, wordsOf } from '../records/fold.js';
import { headline } from './headline.js';
import { drafterInWords } from '../records/highlights.js';
import { judgedDrafts } from './lane.js';
import { MOST_TEXT, laid } from '../records/text.js';
import { stills } from './tiles.js';
import { W } from '../words/words.js';

const STEP_MS = 3500; // between two steps where the story plays by itself
const SPELT_OUT = 3; // rounds whose guesses and check are two steps; a later one is one

export class Story {
  /** @type {any[]} */
  steps = [];
  at = 0; // the step on the screen
  timer = null; // of the next step, where the story plays by itself

  /** finish(): show the race on the page to its end. */
  constructor(race, finish) {
    this.race = race;
    this.finish = finish;
    this.pictures = h('div.vl-story-pictures');
    this.question = h('p');
    this.text = h('p.vl-story-text', { tabindex: '0', label: W.story.text });
    this.meanwhile = h('p.vl-story-text.vl-rest', { tabindex: '0' });
    this.caption = h('p.vl-story-caption', { 'aria-live': 'polite' });
    this.count = h('span.vl-help');
    const on = () => this.turn(this.at + 1);
    const back = () => this.turn(this.at - 1);
    this.back = tool(W.story.back, back);
    this.next = tool(W.story.next, on);
    this.auto = tool(W.story.play, () => this.playByItself(!this.timer));
    const head = h('div.vl-story-head', this.pictures, this.question);
    const stage = h('div.vl-story-stage', { click: on }, head, this.text, this.meanwhile);
    const moves = {
      ...{ ArrowLeft: back, ArrowUp: back, PageUp: back, Backspace: back },
      ...{ ArrowRight: on, ArrowDown: on, PageDown: on, ' ': on, Enter: on },
      ...{ Home: () => this.turn(0), End: () => this.turn(Infinity) },
    };
    const tools = [this.back, this.count, this.next, this.auto];
    const { dialog, fill } = overScreen(W.story, moves, [stage, this.caption], tools);
    this.node = dialog;
    this.fill = fill;
    dialog.addEventListener('close', () => this.playByItself(false));
  }

  /** Opens it, while a finished race is on the page. */
  button() {
    const { race } = this;
    const node = button(W.story.open, () => this.open(), 'vl-small', { hidden: true });
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
    const stepsOf = (round, i) => {
      if (!countDrafted(round)) return [{ round }];
      return [...(i < SPELT_OUT ? [{ round }] : []), { round, checked: true }];
    };
    this.steps = [{}, ...this.lane.rounds.flatMap(stepsOf), { over: true }];
    refill(this.pictures, stills(race.meta.shown));
    put(this.question, race.meta.question ?? '');
    await this.fill();
    this.show(0);
    this.next.focus();
  }

  playByItself(on) {
    const advance = () => {
      this.show(this.at + 1);
      this.playByItself(true);
    };
    clearTimeout(this.timer);
    this.timer = on && this.at < this.steps.length - 1 ? setTimeout(advance, STEP_MS) : null;
    put(this.auto, this.timer ? W.story.pause : W.story.play);
  }

  turn(to) {
    this.playByItself(false);
    this.show(to);
  }

  show(to) {
    const { lane, race, steps } = this;
    const last = steps.length - 1;
    this.at = Math.min(last, Math.max(0, to));
    const step = steps[this.at];
    const first = this.at === 0;
    this.node.classList.toggle('first', first);
    refill(this.text, first ? [] : answerAt(lane, step));
    refill(this.caption, step.over ? headline(race) : [sentenceOf(lane, step)]);
    put(this.meanwhile, first ? '' : plainLaneAt(race, lane, step));
    for (const node of [this.text, this.meanwhile]) node.scrollTop = node.scrollHeight;
    put(this.count, W.story.count(this.at + 1, steps.length));
    this.back.disabled = first;
    this.next.disabled = this.at === last;
  }
}

/** null where the target added nothing. */
function ownText({ tokens }) {
  const { origin, text } = tokens.at(-1);
  return origin === 'target' ? laid(text) : null;
}

/** The answer and what is drafted behind it; the newest words alone are coloured. */
function answerAt({ given, pieces, whole, rounds }, { round, checked, over }) {
  const plain = round && !countDrafted(round);
  const done = whole[over ? rounds.length : round.index + Number(plain)];
  const word = (kind, text) => h(kind ? `span.tk.${kind}` : 'span', { text });
  const written = (piece) =>
    word((over || piece.round === round.index) && piece.origin, laid(piece.text));
  const nodes = [word('', laid(given.text, MOST_TEXT)), ...pieces.slice(0, done).map(written)];
  if (over || plain) return nodes;
  const drafts = judgedDrafts(round).map(({ text, kind }) => word(checked ? kind : 'guess', text));
  const own = checked && ownText(round);
  return [...nodes, ...drafts, own ? word('target', own) : null];
}

function plainLaneAt({ baseline }, lane, { round, checked, over }) {
  if (!baseline || baseline === lane) return '';
  const rounds = over ? Infinity : round.index + Number(checked ?? !countDrafted(round));
  const by = baseline.roundsBy(lane.totalsAfter(rounds).clock_s);
  return W.story.meanwhile(laid(wordsOf(baseline.tokens.slice(0, by)), MOST_TEXT));
}

function sentenceOf(lane, { round, checked }) {
  const by = drafterInWords(lane);
  if (!round) return lane.plain ? W.story.plain : W.story.begin(lane.title, by);
  const { tree, path, tokens } = round;
  const drafted = countDrafted(round);
  if (!drafted) return lane.plain ? W.story.step : W.story.nothing;
  const facts = {
    drafted,
    shown: judgedDrafts(round).length,
    branches: leaves(tree).length,
    kept: countKept(round),
    struck: tree.parent.includes(path.at(-1)),
    relaxed: tokens.filter(({ origin }) => origin === 'relaxed').length,
    own: ownText(round),
  };
  const later = round.index >= SPELT_OUT;
  return checked ? W.story.checked(facts, later) : W.story.drafted(facts, by);
}
