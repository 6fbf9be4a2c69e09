/* All rounds of the lane in focus as a table, folded below its tree; a row opens its round. */

import { folded, h, headRow, scrolls, tableRow } from './dom.js';
import { PHASES, countDrafted, countKept } from '../records/fold.js';
import { tokenChip } from './lane.js';
import { W, fmt } from '../words/words.js';

export class Rounds {
  constructor(race, painter) {
    this.race = race;
    this.body = h('tbody');
    const toggle = () => painter.dirty(this.node);
    const { columns, rounds: title } = W.inspect;
    const table = h('table', headRow(columns), this.body);
    const region = { ...scrolls(title), role: 'region' };
    const box = h('div.vl-rounds-scroll', region, table);
    this.node = folded('details.vl-card.vl-rounds', title, { toggle }, box);
    painter.register(this.node, () => this.draw());
    race.on('reset lane round end head focus select', toggle);
  }

  /** Add the rounds that are shown by now. */
  draw() {
    if (!this.node.open) return;
    const { race, body } = this;
    const lane = race.focused;
    const shown = lane ? race.roundsShown(lane) : 0;
    if (lane !== this.lane || shown < body.children.length) body.replaceChildren();
    this.lane = lane;
    const added = lane?.rounds.slice(body.children.length, shown) ?? [];
    body.append(...added.map((round) => this.row(lane, round)));
    const current = race.selected && race.currentRound?.index;
    [...body.children].forEach((row, i) => row.classList.toggle('current', i === current));
  }

  row(lane, round) {
    const first = lane.first(round);
    const number = (value) => h('td.number', value);
    const text = round.tokens.map((t, i) => tokenChip(lane.said(first + i), lane.kind(t)));
    const opener = { 'aria-label': W.inspect.round(round.index), text: round.index + 1 };
    const cells = [
      number(countDrafted(round)),
      number(countKept(round)),
      h('td.text', text),
      ...PHASES.map((phase) => number(fmt.number(1000 * round[phase], 1))),
    ];
    const click = () => this.race.select({ lane: lane.name, round: round.index });
    return tableRow(h('button.vl-plainbutton', opener), cells, { click });
  }
}
