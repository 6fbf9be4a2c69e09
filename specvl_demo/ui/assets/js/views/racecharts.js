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
    this.chooseOwn();
    race.on('reset', () => this.chooseOwn());
    race.on('compared round end head select focus', () => this.draw());
    race.on('lane focus', (_, type) => this.chooseOwn(type === 'focus'));
    race.on('round end', ({ lane }, type) => {
      // The first round may lack numbers.
      const carries = type === 'end' || lane.rounds.length === 1;
      if (carries && lane === race.focused) this.chooseOwn();
    });
  }

  get all() {
    return [this.own, ...this.common];
  }

  /** The first declared chart that the rounds have numbers for, else a common one. */
  chooseOwn(now = false) {
    const lane = this.race.focused;
    if ((!lane || lane.pending) && this.own) {
      this.draw(); // the next race may well ask for the same
      return;
    }
    const charts = (lane?.begin.charts ?? []).filter(({ kind }) => kind !== 'trees'); // the strip's
    const carried = charts.find((chart) =>
      lane.rounds.some((r) => dig(r, chart.series[0]?.path ?? '') !== undefined),
    );
    const chart = carried ?? (lane?.rounds.length ? undefined : charts[0]);
    const spec = chart ? declared(chart) : byDepth;
    // A chart of the same name stays: to draw into it is cheaper than to make another.
    if (spec.id !== this.own?.spec.id) {
      this.own?.remove();
      this.own = this.make(spec);
      this.node.replaceChildren(...this.all.map(({ node }) => node));
    }
    this.draw(now);
  }

  draw(now = false) {
    for (const chart of this.all) chart.update(now || this.race.finished);
  }
}
