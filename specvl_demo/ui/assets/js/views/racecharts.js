/* The charts of the lane in focus: its method's own, and the speedup. */

import { Chart } from './chart.js';
import { byDepth, speedup } from './charts.js';
import { declared } from './declared.js';
import { h } from './dom.js';
import { dig } from '../records/fold.js';

export class RaceCharts {
  /** @type {Chart | null} */
  own = null;

  constructor(race, painter) {
    this.race = race;
    this.make = (spec) => new Chart(spec, race, painter);
    this.common = [speedup].map(this.make);
    this.node = h('div.vl-charts');
    this.update();
    race.on('reset lane round end compared head select focus', (_, type) =>
      this.update(type === 'focus'),
    );
  }

  get all() {
    return [this.own, ...this.common];
  }

  update(now = false) {
    const lane = this.race.focused;
    // A lane that has not begun may well ask for the chart that stands there.
    if ((lane && !lane.pending) || !this.own) this.chooseOwn(lane);
    for (const chart of this.all) chart.update(now || this.race.finished);
  }

  /** The first declared chart that the rounds have numbers for, else a common one. */
  chooseOwn(lane) {
    const charts = (lane?.begin.charts ?? []).filter(({ kind }) => kind !== 'trees'); // the strip's
    const carried = charts.find((chart) =>
      lane.rounds.some((r) => dig(r, chart.series[0]?.path ?? '') !== undefined),
    );
    const chart = carried ?? (lane?.rounds.length ? undefined : charts[0]);
    // A chart of the same name stays: to draw into it is cheaper than to make another.
    if (this.own && this.own.spec.id === (chart ?? byDepth).id) return;
    this.own?.remove();
    this.own = this.make(chart ? declared(chart) : byDepth);
    this.node.replaceChildren(...this.all.map(({ node }) => node));
  }
}
