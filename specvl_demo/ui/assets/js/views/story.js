/* A finished race told over the whole screen, one sentence a press. */

import { overScreen, questionHead, tool } from './back.js';
import { button, h, put, refill } from './dom.js';
import { countDrafted, countKept, leaves, wordsOf } from '../records/fold.js';
import { headline } from './headline.js';
import { drafterInWords } from '../records/highlights.js';
import { judgedDrafts } from './lane.js';
import { ENDS, MOST_TEXT, laid } from '../records/text.js';
import { W } from '../words/words.js';

const SPELT_OUT = 3; // rounds whose guesses and check are two steps; a later one is one

/** Dialog and opener. @param {Replay} replay */
export function story(replay) {
  const { race } = replay;
  let [lane, steps, at] = [null, [], 0]; // its lane, the steps, the one shown
  const show = (to) => {
    at = Math.min(steps.length - 1, Math.max(0, to));
    dialog.classList.toggle('first', at === 0);
    screen.draw(lane, steps, at);
  };
  const back = () => show(at - 1);
  const on = () => show(at + 1);
  const moves = {
    ...{ back, on, ' ': on, Enter: on },
    ...{ Home: () => show(0), End: () => show(Infinity) },
  };
  const screen = screenOf(race, back, on);
  const { dialog, fill } = overScreen(W.story, moves, screen.stage, screen.tools);
  const open = async () => {
    replay.finish();
    lane = protagonist(race);
    steps = [{}, ...lane.rounds.flatMap(stepsOf), { over: true }];
    screen.tell();
    await fill();
    show(0);
    screen.next.focus();
  };
  const opener = button(W.story.open, open, 'vl-small', { hidden: true });
  race.on('reset lane begin end', () => {
    opener.hidden = !race.whole || race.list.some(({ rounds }) => !rounds.length);
  });
  return { dialog, opener };
}

/** The lane in focus, or else the first that drafted: the plain one has nothing of its own to show. */
function protagonist({ focused, list }) {
  return [focused, ...list].find((lane) => lane.rounds.some(countDrafted)) ?? focused;
}

function stepsOf(round, i) {
  if (!countDrafted(round)) return [{ round }];
  return [...(i < SPELT_OUT ? [{ round }] : []), { round, checked: true }];
}

function screenOf(race, onback, onnext) {
  const { head, tell } = questionHead(race);
  const text = h('p.vl-story-text', { tabindex: '0', label: W.story.text });
  const meanwhile = h('p.vl-story-text.vl-rest', { tabindex: '0' });
  const caption = h('p.vl-story-caption', { 'aria-live': 'polite' });
  const count = h('span.vl-help');
  const back = tool(W.story.back, onback);
  const next = tool(W.story.next, onnext);
  const box = h('div.vl-story-stage', { click: onnext }, head, text, meanwhile);
  const draw = (lane, steps, at) => {
    const step = steps[at];
    const first = at === 0;
    refill(text, first ? [] : answerAt(lane, step));
    refill(caption, step.over ? headline(race) : [sentenceOf(lane, step)]);
    put(meanwhile, first ? '' : plainLaneAt(race, lane, step));
    for (const node of [text, meanwhile]) node.scrollTop = node.scrollHeight;
    put(count, W.story.count(at + 1, steps.length));
    back.disabled = first;
    next.disabled = at === steps.length - 1;
  };
  return { stage: [box, caption], tools: [back, count, next], next, tell, draw };
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
  const word = (kind, text) => h(kind ? `span.tk.${kind}` : 'span', text);
  const written = (piece) =>
    word((over || piece.round === round.index) && piece.origin, laid(piece.text));
  const nodes = [word('', laid(given.text, MOST_TEXT)), ...pieces.slice(0, done).map(written)];
  if (over || plain) return nodes;
  const drafts = judgedDrafts(round).map(({ text, kind }) =>
    word(checked ? kind : 'guess', text === ENDS ? W.story.ends : text),
  );
  const own = checked && ownText(round);
  return [...nodes, ...drafts, own ? word('target', own) : null];
}

/** What AR has written by then, at last all. */
function plainLaneAt({ baseline }, lane, { round, checked, over }) {
  if (!baseline || baseline === lane) return '';
  const rounds = () => round.index + Number(checked ?? !countDrafted(round));
  const by = over ? Infinity : baseline.roundsBy(lane.totalsAfter(rounds()).clock_s);
  return W.story.meanwhile(laid(wordsOf(baseline.tokens.slice(0, by)), MOST_TEXT), over);
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
  if (!checked) return W.story.drafted(facts, by);
  return W.story.checked(facts, later) + (round.index ? '' : W.story.why);
}
