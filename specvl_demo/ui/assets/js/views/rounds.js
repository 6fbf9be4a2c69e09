/* All rounds of the lane in focus as a table, folded below its tree; a row opens its round. */

import { folded, h, headRow } from './dom.js';
import { PHASES, countDrafted, countKept } from '../records/fold.js';
import { tokenChip } from './lane.js';
import { W, fmt } from '../words/words.js';

/** Lists all rounds of the lane in focus. */
export class Rounds {
  constructor(race, painter) {
    this.race = race;
    this.body = h('tbody');
    const wake = () => painter.dirty(this.node);
    const { columns, rounds: title } = W.inspect;
    const scrolls = { tabindex: '0', role: 'region', 'aria-label': title };
    const table = h('table', headRow(columns), this.body);
    this.node = folded(
      'details.vl-card.vl-rounds',
      title,
      { on: { toggle: wake } },
      h('div.vl-rounds-scroll', scrolls, table),
    );
    painter.register(this.node, () => this.draw());
    race.on('reset lane round end head focus select', wake);
  }

  /** Add the rounds that are shown by now. */
  draw() {
    if (!this.node.open) return;
    const lane = this.race.focused;
    const shown = lane ? this.race.roundsShown(lane) : 0;
    if (lane !== this.lane || shown < this.body.children.length) this.body.replaceChildren();
    this.lane = lane;
    for (let i = this.body.children.length; i < shown; i += 1)
      this.body.append(this.row(lane, lane.rounds[i]));
    const current = this.race.selected && this.race.currentRound?.index;
    for (const row of this.body.querySelectorAll('.current')) row.classList.remove('current');
    this.body.children[current ?? -1]?.classList.add('current');
  }

  /** A round as a row that opens it. */
  row(lane, round) {
    const first = lane.first(round);
    const number = (value) => h('td.number', String(value));
    const text = round.tokens.map((t, i) => tokenChip(lane.said(first + i), lane.kind(t)));
    const opener = { 'aria-label': W.inspect.round(round.index), text: String(round.index + 1) };
    return h(
      'tr',
      { on: { click: () => this.race.select({ lane: lane.name, round: round.index }) } },
      h('th', { scope: 'row' }, h('button.vl-plainbutton', opener)),
      number(countDrafted(round)),
      number(countKept(round)),
      h('td.text', text),
      PHASES.map((phase) => number(fmt.number(1000 * round[phase], 1))),
    );
  }
}
