/* The race as one screen: what is asked, the track, the answers side by side, the tree and the inspector, live charts.
   Composition only: every part draws itself. */

import { h, put, icon } from './dom.js';
import { Chart } from './chart.js';
import { byDepth, perRound, phases, speedup } from './charts.js';
import { declared } from './declared.js';
import { costs, dig, firstDifference, whySlow } from './fold.js';
import { Inspector } from './inspector.js';
import { LaneView } from './lane.js';
import { Player } from './player.js';
import { Track } from './track.js';
import { TreeView } from './tree.js';
import { W } from './words.js';

const SLACK = 0.02; // timers are not exact

export class RaceView {
  /** on: {save(), link(), follow()}: what the buttons around the race do. */
  constructor(race, painter, catalog, plotlyUrl, on) {
    Object.assign(this, { race, painter, catalog, plotlyUrl, on });
    this.lanes = new Map();
    this.player = new Player(race);
    this.track = new Track(race, painter);
    this.tree = new TreeView(race, painter);
    this.inspector = new Inspector(race, painter);
    this.charts = [perRound, speedup, phases].map((spec) => this.chart(spec));
    this.own = null;
    this.build();
    race.on('reset', () => { this.lanes.clear(); this.texts.replaceChildren(); this.title(); this.methodCharts(); });
    race.on('lane', ({ lane }) => this.addLane(lane));
    race.on('round end', ({ lane }) => { this.lanes.get(lane.name)?.update(); this.redraw(); });
    race.on('head select focus', () => { for (const view of this.lanes.values()) view.update(); this.redraw(); });
    race.on('lane focus', (_, type) => this.methodCharts(type === 'focus'));
    race.on('round', ({ lane }) => { if (lane.rounds.length === 1 && lane === race.focused) this.methodCharts(); });
    race.on('end head', () => this.verdict());
  }

  chart(spec) { return new Chart(spec, this.race, this.painter, this.plotlyUrl); }

  build() {
    this.badge = h('span', { class: 'vl-badge' });
    this.question = h('p', { class: 'vl-question' });
    this.thumbs = h('span', { class: 'vl-question-media' });
    this.tools = h('div', { class: 'vl-race-tools' },
      this.tool('link', W.run.link, () => this.on.link()), this.tool('save', W.run.save, () => this.on.save()));
    this.texts = h('div', { class: 'vl-lanes' });
    this.said = h('p', { class: 'vl-verdict', role: 'status' });
    this.followUp = h('button', { type: 'button', class: 'vl-small', hidden: true, text: W.chat.follow, title: W.chat.followHint, on: { click: () => this.on.follow() } });
    const box = h('input', { type: 'checkbox', id: 'vl-rejected', on: { change: () => this.node.classList.toggle('rejects', box.checked) } });
    this.legend = h('div', { class: 'vl-textlegend', role: 'note', 'aria-label': W.legend.title },
      ['draft', 'relaxed', 'target', 'rejected'].map((o) => h('span', { class: `tk ${o}`, text: W.legend[o] })),
      h('label', { for: 'vl-rejected' }, box, W.legend.showRejected));
    this.grid = h('div', { class: 'vl-charts' });
    this.node = h('div', { class: 'vl-race idle' },
      h('div', { class: 'vl-start' }, h('h2', { text: W.start.title }), h('p', { text: W.start.text })),
      h('div', { class: 'vl-race-head' }, this.badge, this.thumbs, this.question, this.player.node, this.tools),
      h('div', { class: 'vl-card' }, this.track.node), this.texts, h('div', { class: 'vl-under' }, this.legend, this.said, this.followUp),
      h('div', { class: 'vl-pair' }, this.tree.node, this.inspector.node), this.grid);
    this.methodCharts();
  }

  tool(name, text, fn) { return h('button', { type: 'button', class: 'vl-tool', title: text, 'aria-label': text, on: { click: fn } }, icon(name)); }

  title() {
    const { meta } = this.race;
    this.badge.className = `vl-badge ${meta.source ?? ''}`;
    put(this.badge, meta.source === 'recorded' ? W.run.recorded : meta.source === 'live' ? W.run.live : '');
    this.badge.title = meta.machine ? W.run.recordedOn(meta.machine) : '';
    put(this.question, meta.question ?? '');
    this.thumbs.replaceChildren();
    put(this.said, '');
  }

  addLane(lane) {
    this.thumbs.replaceChildren(...(this.race.meta.shown ?? []).filter((m) => m.frames[0])
      .map((m) => h('img', { src: m.frames[0], alt: m.name, title: m.frames.length > 1 ? W.patches.frames(m.frames.length) : m.name })));
    const view = new LaneView(this.race, lane, this.painter);
    this.lanes.set(lane.name, view);
    this.texts.append(view.node);
    this.node.classList.remove('idle');
    this.texts.dataset.count = this.lanes.size;
  }

  /** A chart of the focused lane's own: the first declared one, its method's before others', whose numbers its rounds
   *  carry; where there is none, a common chart stands in its place. */
  methodCharts(now = false) {
    const lane = this.race.focused;
    if (!lane && this.own) { this.redraw(); return; } // the next race may well ask for the same
    const method = this.catalog.methods.find((m) => m.name === lane?.begin.method);
    const own = (method?.charts ?? []).map((id) => this.catalog.charts[id]);
    const carried = [...own, ...Object.values(this.catalog.charts)]
      .find((chart) => chart && lane?.rounds.some((r) => dig(r, chart.series[0].path) !== undefined));
    const chart = carried ?? (lane?.rounds.length ? undefined : own[0]);
    const spec = chart ? declared(chart) : byDepth;
    if (spec.id !== this.own?.spec.id) {
      this.own?.remove();
      this.own = this.chart(spec);
      this.grid.replaceChildren(...[this.own, ...this.charts].map((c) => c.node));
    }
    this.redraw(now);
  }

  redraw(now = false) { for (const chart of [this.own, ...this.charts]) chart.update(now || this.race.finished); }

  repaint() { for (const chart of [this.own, ...this.charts]) chart.repaint(); }

  /** A finished live race can be followed by another question about the same pictures. */
  offerFollow(on) { this.followUp.hidden = !on; }

  /** When all lanes are in: does every lane say what the plain model says, and why is a slow one slow? */
  verdict() {
    const { race } = this;
    const base = race.baseline;
    if (!race.finished || !base) { put(this.said, ''); return; }
    const lines = race.list.filter((lane) => lane !== base).flatMap((lane) => {
      const { title } = lane.begin;
      const i = firstDifference(base, lane);
      const whole = i === null && lane.tokens.length === base.tokens.length;
      const cost = costs(lane, base);
      const slow = whySlow(cost);
      return [
        whole ? W.run.same(title) : W.run.differs(title, i ?? Math.min(lane.tokens.length, base.tokens.length)),
        cost?.speedup > cost?.tau * (1 + SLACK) && W.run.doubt(title), slow && W.run.slow[slow](title, cost),
      ].filter(Boolean);
    });
    put(this.said, lines.join(' · '));
  }
}
