/* The race over the whole screen: all lanes on one clock, the plain lane's place in the leader's text. */

import { overScreen, tool } from './back.js';
import { h, iconButton, put } from './dom.js';
import { headline, tellIn } from './headline.js';
import { legendOf } from './lane.js';
import { strip } from './strip.js';
import { laid } from '../records/text.js';
import { doubt, hedged } from '../records/verdict.js';
import { W, fmt } from '../words/words.js';

const SIZES = [44, 34, 24, 18]; // of type, in pixels

/** Dialog and opener. @param {Replay} replay */
export function chase(replay, painter) {
  const { race } = replay;
  const ghost = h('b.vl-badge', W.chase.ghost);
  const lanes = h('div.vl-chase');
  const question = h('p');
  const clock = h('output.vl-time');
  const back = () => replay.turn(-1);
  const on = () => replay.turn(1);
  const start = () => replay.scrub(0);
  const turn = () => replay.toggle();
  const [play, next] = [tool(W.story.play, turn), tool(W.story.next, on)];
  const tools = [tool(W.chase.start, start), tool(W.story.back, back), play, next, clock];
  const moves = {
    ...{ ArrowLeft: back, PageUp: back, ArrowRight: on, PageDown: on },
    ...{ ' ': turn, Home: start, End: () => replay.turn(Infinity) },
  };
  const legend = h('div.vl-textlegend', legendOf(['draft', 'relaxed', 'target']));
  const says = h('p.vl-headline');
  const stage = h('div.vl-story-stage', h('div.vl-story-head', question, legend), lanes, says);
  const parts = [stage, strip(race, painter)];
  const { dialog, fill } = overScreen(W.chase, moves, parts, tools);
  let rows = [];

  const draw = () => {
    for (const row of rows) drawRow(race, row);
    placeGhost(race, rows, ghost);
    put(play, replay.playing ? W.story.pause : W.story.play);
    put(clock, fmt.seconds(race.head ?? race.duration));
    tellIn(says, headline(race));
    for (const { text } of rows) text.scrollTop = text.scrollHeight;
  };

  /** Find the largest type in which all answers can be read to their ends, or else take the smallest. */
  const fit = () => {
    for (const word of lanes.querySelectorAll('.tk')) word.hidden = false;
    SIZES.find((size) => {
      lanes.style.fontSize = `${size}px`;
      return rows.every(({ text }) => text.scrollHeight <= text.clientHeight);
    });
    draw();
  };

  const open = async () => {
    put(question, race.meta.question ?? '');
    rows = race.list.map(rowOf);
    lanes.replaceChildren(...rows.map(({ head, text }) => h('div', head, text)));
    await fill();
    replay.replay();
    play.focus();
  };

  const opener = iconButton('screen', W.chase.open, open);
  dialog.addEventListener('close', () => replay.finish());
  const soon = () => dialog.open && painter.soon(draw);
  new ResizeObserver(() => dialog.open && painter.soon(fit)).observe(lanes);
  race.on('head', soon);
  race.on('reset lane end', () => (opener.hidden = !race.whole));
  replay.on('change', soon);
  return { dialog, opener };
}

/** Put the plain lane's place into the text of the lane that is furthest, if that is another one. */
function placeGhost(race, rows, ghost) {
  const { baseline } = race;
  const far = ({ lane }) => race.now(lane).n_tokens;
  const leader = rows.reduce((a, b) => (far(b) > far(a) ? b : a));
  const reached = baseline ? race.now(baseline).n_tokens : 0;
  const before = leader.lane !== baseline && leader.parts[leader.lane.tokens[reached]?.piece];
  if (!before || before.hidden) ghost.remove();
  else if (before.previousSibling !== ghost) before.before(ghost);
}

/** Words are hidden until the replay reaches them. */
function rowOf(lane) {
  const word = (piece) => h(`span.tk.${lane.kind(piece)}`, { hidden: true }, laid(piece.text));
  const parts = lane.pieces.map(word);
  const text = h('p.vl-story-text', parts);
  const facts = h('span.vl-facts');
  const style = { '--lane': `var(--vl-lane-${lane.colour})` };
  const head = h('div.vl-story-head', { style }, h('i.vl-swatch'), h('b', lane.title), facts);
  return { lane, parts, text, head, facts };
}

function drawRow(race, { lane, parts, facts }) {
  const shown = lane.whole[race.roundsShown(lane)];
  parts.forEach((part, i) => (part.hidden = i >= shown));
  const why = doubt(race, lane);
  const speed = lane !== race.baseline && fmt.times(race.speedup(lane));
  const told = why ? hedged(why) && W.track.about(hedged(why)) : speed;
  const { n_tokens: far } = race.now(lane);
  const lossy = !lane.begin.lossless && W.lane.lossy;
  put(facts, W.chase.far(far, race.over(lane) && W.stop.eos, told, lossy));
}
