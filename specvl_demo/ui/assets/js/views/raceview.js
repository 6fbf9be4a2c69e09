/* The race as one screen: its parts, and the sentences around them. */

import { answers } from './answers.js';
import { chase } from './chase.js';
import { comparison } from './comparison.js';
import { button, h, put, tell } from './dom.js';
import { headline, tellIn } from './headline.js';
import { inspector } from './inspector.js';
import { legendOf } from './lane.js';
import { RaceCharts } from './racecharts.js';
import { raceHead } from './racehead.js';
import { roundTable } from './rounds.js';
import { story } from './story.js';
import { strip } from './strip.js';
import { track } from './track.js';
import { TreeView } from './tree.js';
import { whatIf } from './whatifview.js';
import { W } from '../words/words.js';

/** Its element, and the tree and charts in it.
 *  @param {{ race: Race, stage: Stage, on: Actions, [part: string]: any }} parts */
export function raceView({ race, stage, replay, painter, catalog, on }) {
  const tree = new TreeView(race, painter);
  const charts = new RaceCharts(race, painter);
  const { follow, undrawn } = offerButtons(stage, on);
  const told = story(replay);
  const chased = chase(replay, painter);
  const offers = h('div.vl-offers', told.opener, chased.opener, undrawn);
  const says = h('div.vl-says', sentence(race, stage, painter), offers);
  const { agreement, slow, sure } = comparison(race, catalog.sure);
  const under = h('div.vl-under', legend(), follow, agreement, slow);
  tree.node.append(strip(race, painter));
  const drawn = h('div.vl-stack', tree.node, charts.node);
  const pair = h('div.vl-pair', drawn, inspector(race, painter, catalog.notes));
  const raced = h('div.vl-card', track(race, painter));
  const scope = h('p.vl-scope');
  const lanes = answers(race, painter, on.back);
  const below = [roundTable(race, painter), whatIf(race, painter)];
  const body = h('div.vl-stage', busyLine(race), raced, scope, lanes, sure, under, pair, below);
  body.addEventListener('click', ({ target, clientY }) => {
    const over = clientY - innerHeight / 3;
    const sheet = race.selected?.picked && matchMedia('(max-width: 900px)').matches;
    if (sheet && over > 0 && target.closest('.vl-text, .vl-tree-box')) scrollBy(0, over);
  });
  const notice = h('p.vl-notice', { role: 'status' });
  const starting = h('p', W.start.text);
  const head = [notice, h('div.vl-start', h('h2', W.start.title), starting)];
  const top = raceHead(race, replay, on);
  const node = h('div.vl-race.idle', head, top, says, body, told.dialog, chased.dialog);
  race.on('reset', () => {
    const { source } = race.meta;
    node.classList.toggle('idle', !source);
    node.classList.toggle('unbegun', source === 'ended');
    put(scope, race.meta.scope ?? '');
  });
  stage.on('notice', () => tell(notice, stage.notice.text, stage.notice.wrong));
  stage.on('outdated', () => {
    body.classList.toggle('outdated', stage.outdated);
    node.classList.toggle('away', stage.away);
    if (stage.away) put(starting, W.start.own);
  });
  return { node, tree, charts };
}

function offerButtons(stage, on) {
  const buttons = {
    follow: button(W.chat.follow, on.follow, 'vl-small', { title: W.chat.followHint }),
    undrawn: button(W.run.measure, on.undrawn),
  };
  const show = () => {
    for (const [name, node] of Object.entries(buttons)) node.hidden = !stage.offers.includes(name);
  };
  stage.on('offers', show);
  show();
  return buttons;
}

/** What origins look like in the text. Whether rejected drafts are shown there, styles read from the box. */
function legend() {
  const kinds = 'draft relaxed preferred target by other rejected after'.split(' ');
  const marks = legendOf(kinds);
  const shows = h('label', h('input', { type: 'checkbox' }), W.legend.showRejected);
  return h('div.vl-textlegend', { role: 'note', label: W.legend.title }, marks, shows);
}

/** Tells that other programs disturb the race. */
function busyLine(race) {
  const line = h('p.vl-busy', { role: 'status' });
  race.on('load lane end reset', () => {
    const busy = !race.ended && race.load > race.rules.load;
    put(line, busy ? W.run.busyNow(race.load) : '');
  });
  return line;
}

/** What the race comes to, or what is awaited. */
function sentence(race, stage, painter) {
  const line = h('p.vl-headline', { tabindex: '-1' }); // a touch unfolds it
  const say = () => {
    const unseen = stage.undrawn || !race.list.some((lane) => lane.rounds.length);
    const waits = stage.waiting !== '' && unseen;
    const nodes = waits ? [stage.waiting] : headline(race);
    tellIn(line, nodes);
    line.classList.toggle('waiting', waits);
  };
  race.on('lane begin round end head compared reset', () => painter.soon(say));
  stage.on('waiting', () => painter.now(say));
  return line;
}
