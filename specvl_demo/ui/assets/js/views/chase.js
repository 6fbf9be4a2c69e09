/* The race over the whole screen: all lanes on one clock, the plain lane's place in the leader's text, the tree. */

import { overScreen, questionHead, tool } from './back.js';
import { button, h, put } from './dom.js';
import { headline, tellIn } from './headline.js';
import { legendOf } from './lane.js';
import { TreeView } from './tree.js';
import { laid } from '../records/text.js';
import { doubt, hedged } from '../records/verdict.js';
import { W, fmt } from '../words/words.js';

const SIZES = [44, 34, 29, 24, 18]; // of type, in pixels
const SMALLEST = 12; // of a finished answer

/** Dialog and opener. @param {Replay} replay */
export function chase(replay, painter) {
  const { race } = replay;
  const lanes = h('div.vl-chase');
  const clock = h('output.vl-time');
  const back = () => replay.turn(-1);
  const on = () => replay.turn(1);
  const start = () => replay.scrub(0);
  const turn = () => replay.toggle();
  const [play, next] = [tool(W.story.play, turn), tool(W.story.next, on)];
  const tools = [tool(W.chase.start, start), tool(W.story.back, back), play, next, clock];
  const moves = { back, on, ' ': turn, Home: start, End: () => replay.turn(Infinity) };
  const marks = legendOf(['draft', 'relaxed', 'target', 'rejected', 'after']);
  const legend = h('div.vl-textlegend', marks, h('span.tk.ghost', W.chase.ghost));
  const says = h('p.vl-headline');
  const { head, tell } = questionHead(race, legend);
  const stage = h('div.vl-story-stage', head, lanes, says);
  const tree = new TreeView(race, painter, true);
  tree.node.inert = true; // its keys are the race's
  const { dialog, fill } = overScreen(W.chase, moves, [stage, tree.node], tools);
  let rows = [];

  const draw = () => {
    for (const row of rows) drawRow(race, row);
    placeGhost(race, rows);
    put(play, replay.playing ? W.player.pause : W.story.play);
    put(clock, fmt.seconds(race.head ?? race.duration));
    tellIn(says, headline(race));
    for (const row of rows) settle(row, race.over(row.lane));
  };

  const refit = () => {
    fit(lanes, rows);
    draw();
  };

  const open = async () => {
    tell();
    rows = race.list.map(rowOf);
    lanes.replaceChildren(...rows.map(({ head: name, text }) => h('div', name, text)));
    await fill();
    replay.replay();
    play.focus();
  };

  const opener = button(W.chase.open, open, 'vl-small', { sign: 'screen' });
  dialog.addEventListener('close', () => replay.finish());
  const soon = () => dialog.open && painter.soon(draw);
  new ResizeObserver(() => dialog.open && painter.soon(refit)).observe(lanes);
  race.on('head', soon);
  race.on('reset lane end', () => (opener.hidden = !race.whole));
  replay.on('change', soon);
  return { dialog, opener };
}

/** Find the largest type in which all answers can be read to their ends, or else take the smallest. */
function fit(lanes, rows) {
  for (const word of lanes.querySelectorAll('.tk')) word.hidden = false;
  for (const row of rows) settle(row, false);
  SIZES.find((size) => {
    lanes.style.fontSize = `${size}px`;
    const fits = (box) => box.scrollHeight <= box.clientHeight;
    return [lanes.parentNode, ...rows.map(({ text }) => text)].every(fits);
  });
}

/** Mark in the text of the lane that is furthest where the plain one is, as long as that writes. */
function placeGhost(race, rows) {
  const { baseline } = race;
  const far = ({ lane }) => race.now(lane).n_tokens;
  const leader = rows.reduce((a, b) => (far(b) > far(a) ? b : a));
  const { lane, parts } = leader;
  const writes = baseline && lane !== baseline && !race.over(baseline);
  for (const row of rows) for (const part of row.parts) part.classList.remove('ghost');
  if (writes) parts[lane.tokens[race.now(baseline).n_tokens]?.piece]?.classList.add('ghost');
}

/** Words are hidden until the replay reaches them. */
function rowOf(lane) {
  const word = (piece) => h(`span.tk.${lane.kind(piece)}`, { hidden: true }, laid(piece.text));
  const parts = lane.pieces.map(word);
  const text = h('p.vl-story-text', parts);
  const facts = h('span.vl-facts');
  const data = { colour: lane.colour };
  const head = h('div.vl-story-head', { data }, h('i.vl-swatch'), h('b', lane.title), facts);
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
  put(facts, W.chase.far(far, race.over(lane) && W.stop.eos, race.finished && told, lossy));
}

/** Show the newest words, or, once it is over, the answer from its start, so small that all can be read. */
function settle(row, over) {
  const { style } = row.text;
  if (!over) style.fontSize = '';
  if (over && !row.settled) {
    let size = parseFloat(getComputedStyle(row.text).fontSize);
    while (size > SMALLEST && row.text.scrollHeight > row.text.clientHeight)
      style.fontSize = `${(size -= 1)}px`;
  }
  row.settled = over;
  row.text.scrollTop = over ? 0 : row.text.scrollHeight;
}
