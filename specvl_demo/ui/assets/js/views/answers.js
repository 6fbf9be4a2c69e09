/* The answers side by side, before them the one branched from. */

import { button, h, refill } from './dom.js';
import { LaneView } from './lane.js';
import { MOST_TEXT, laid, shown } from '../records/text.js';
import { W } from '../words/words.js';

/** onback(): show the race from which branches were taken. */
export function answers(race, painter, onback) {
  const views = new Map(); // by the lane's name
  const chips = h('div.vl-chips.vl-choice');
  const node = h('div.vl-lanes');
  // Long answers are compared line by line.
  const scrollAlike = ({ target }) => {
    if (race.head !== null || !race.finished) return;
    for (const { box } of views.values())
      if (box !== target && box.scrollTop !== target.scrollTop) box.scrollTop = target.scrollTop;
  };
  node.addEventListener('scroll', scrollAlike, true);
  race.on('reset', () => {
    views.clear();
    chips.replaceChildren();
    refill(node, [race.meta.branch && originalAnswer(race.meta.branch, onback)]);
  });
  race.on('lane', ({ lane }) => {
    const view = new LaneView(race, lane, painter);
    views.set(lane.name, view);
    node.append(view.node);
    node.dataset.count = node.children.length;
    if (!lane.plain) chips.append(view.chip);
  });
  race.on('begin', ({ lane }) => views.get(lane.name).begun());
  race.on('begin round end', ({ lane }) => views.get(lane.name).update());
  race.on('lane head select focus', (_, type) => {
    for (const view of views.values()) view.update(type !== 'head');
  });
  return [chips, node];
}

function originalAnswer({ lane, before, chosen, taken, after }, onback) {
  const fork = h('b.vl-fork', { title: W.branch.fork(shown(taken)) }, laid(chosen));
  const words = [laid(before, MOST_TEXT), fork, laid(after, MOST_TEXT)];
  const title = W.branch.title(lane);
  return h(
    'section.vl-lane.vl-original.done',
    { label: title },
    h('header', h('b', title), button(W.branch.back, onback)),
    h('div.vl-text', { tabindex: '0' }, h('div.vl-words', words)),
  );
}
