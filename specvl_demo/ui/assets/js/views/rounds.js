/* All rounds of the lane in focus as a table; a row opens its round. */

import { folded, h, headRow, scrolls, tableRow } from './dom.js';
import { PHASES, countDrafted, countKept } from '../records/fold.js';
import { tokenChip } from './lane.js';
import { W, fmt } from '../words/words.js';

export function roundTable(race, painter) {
  const body = h('tbody');
  let written = null; // the lane whose rounds stand there
  const draw = () => {
    if (!node.open) return;
    const lane = race.focused;
    const shown = lane ? race.roundsShown(lane) : 0;
    if (lane !== written || shown < body.children.length) body.replaceChildren();
    written = lane;
    const added = lane?.rounds.slice(body.children.length, shown) ?? [];
    body.append(...added.map((round) => rowOf(race, lane, round)));
    const current = race.selected && race.currentRound?.index;
    [...body.children].forEach((row, i) => row.classList.toggle('current', i === current));
  };
  const toggle = () => painter.dirty(node);
  const { columns, rounds: title } = W.inspect;
  const table = h('table', headRow(columns), body);
  const box = h('div.vl-rounds-scroll', { ...scrolls(title), role: 'region' }, table);
  const node = folded('details.vl-card.vl-rounds', title, { toggle }, box);
  painter.register(node, draw);
  race.on('reset lane round end head focus select', toggle);
  return node;
}

function rowOf(race, lane, round) {
  const { index, tokens } = round;
  const first = lane.first(round);
  const number = (value) => h('td.number', value);
  const chips = tokens.map((token, i) => tokenChip(lane.said(first + i), lane.kind(token)));
  const cells = [
    number(countDrafted(round)),
    number(countKept(round)),
    h('td.text', chips),
    ...PHASES.map((phase) => number(fmt.number(1000 * round[phase], 1))),
  ];
  const opener = h('button.vl-plainbutton', { label: W.inspect.round(index) }, index + 1);
  const click = () => race.select({ lane: lane.name, round: index });
  return tableRow(opener, cells, { click });
}
