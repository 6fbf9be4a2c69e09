/* One lane in full: its tree at any round, the selected token, a table of all rounds, every chart
   that its records allow. The same parts as in the race, with more room. */

import { h, fmt, headRow } from './dom.js';
import { Chart } from './chart.js';
import { byDepth, perRound, phases, speedup } from './charts.js';
import { declared } from './declared.js';
import { dig } from './fold.js';
import { Inspector } from './inspector.js';
import { tokenChip } from './lane.js';
import { laneSwitch } from './track.js';
import { TreeView } from './tree.js';
import { W } from './words.js';

export class InspectView {
  constructor(race, painter, catalog, plotlyUrl) {
    Object.assign(this, { race, painter, catalog, plotlyUrl });
    this.tree = new TreeView(race, painter);
    this.inspector = new Inspector(race, painter);
    this.rounds = new RoundTable(race, painter);
    this.charts = [];
    this.lanes = laneSwitch(race);
    this.grid = h('div.vl-charts');
    this.node = h(
      'div.vl-inspect',
      this.lanes,
      h(
        'div.vl-inspect-main',
        h('div.vl-stack', this.tree.node, this.rounds.node),
        this.inspector.node,
      ),
      this.grid,
    );
    race.on('reset lane begin focus', () => {
      this.lanes.fill();
      this.pickCharts();
    });
    race.on('round end head', () => {
      for (const chart of this.charts) chart.update();
    });
    race.on('end', () => this.pickCharts());
  }

  pickCharts() {
    const lane = this.race.focused;
    const carried = (lane?.begin.charts ?? []).filter((chart) =>
      lane.rounds.some((r) => dig(r, chart.series[0]?.path ?? '') !== undefined),
    );
    const specs = lane ? [...carried.map(declared), perRound, byDepth, phases, speedup] : [];
    if (specs.map((s) => s.id).join() !== this.charts.map((c) => c.spec.id).join()) {
      for (const chart of this.charts) chart.remove();
      this.charts = specs.map((spec) => new Chart(spec, this.race, this.painter, this.plotlyUrl));
      this.grid.replaceChildren(...this.charts.map((c) => c.node));
    }
    for (const chart of this.charts) chart.update(true);
  }

  repaint() {
    for (const chart of this.charts) chart.repaint();
  }
}

/** All rounds of the focused lane, one row each; a row opens its round. */
class RoundTable {
  constructor(race, painter) {
    this.race = race;
    this.body = h('tbody');
    this.node = h(
      'section.vl-card.vl-rounds',
      h('header', h('h2', W.inspect.rounds)),
      h(
        'div.vl-rounds-scroll',
        { tabindex: '0', 'aria-label': W.inspect.rounds },
        h('table', headRow(W.inspect.columns), this.body),
      ),
    );
    painter.register(this.node, () => this.draw());
    race.on('reset lane round end head focus select', () => painter.dirty(this.node));
  }

  draw() {
    const lane = this.race.focused;
    const shown = lane ? this.race.shown(lane) : 0;
    if (lane !== this.lane || shown < this.body.children.length) this.body.replaceChildren();
    this.lane = lane;
    for (let i = this.body.children.length; i < shown; i += 1)
      this.body.append(this.row(lane, lane.rounds[i]));
    const current = this.race.selected && this.race.currentRound?.index;
    for (const row of this.body.querySelectorAll('.current')) row.classList.remove('current');
    if (current !== null && current !== undefined) {
      const row = this.body.children[current];
      row?.classList.add('current');
      row?.scrollIntoView({ block: 'nearest' });
    }
  }

  row(lane, round) {
    const plain = lane.begin.method === 'ar';
    const first = lane.at(round.index).tokens;
    const ms = (phase) => h('td.number', fmt.number(1000 * round[phase], 1));
    return h(
      'tr',
      { on: { click: () => this.race.select({ lane: lane.name, round: round.index }) } },
      h(
        'th',
        { scope: 'row' },
        h('button.vl-plainbutton', {
          text: String(round.index + 1),
          'aria-label': W.inspect.round(round.index),
        }),
      ),
      h('td.number', String(round.tree.tokens.length - 1)),
      h('td.number', String(round.path.length - 1)),
      h(
        'td.text',
        round.tokens.map((t, i) => tokenChip(lane.said(first + i), plain ? 'ar' : t.origin)),
      ),
      ms('draft_s'),
      ms('verify_s'),
      ms('commit_s'),
      ms('other_s'),
    );
  }
}
