/* The race as one screen: what is asked, the track, the answers side by side, the tree and the inspector, live charts.
   Composition only: every part draws itself. */

import { button, h, put, icon, shown } from './dom.js';
import { Chart } from './chart.js';
import { best, headline, instructive } from './headline.js';
import { byDepth, speedup } from './charts.js';
import { declared } from './declared.js';
import { dig } from '../records/fold.js';
import { doubt, doubts } from '../records/verdict.js';
import { Inspector } from './inspector.js';
import { LaneView } from './lane.js';
import { MOST_TEXT, laid } from '../records/text.js';
import { Player } from './player.js';
import { Rounds } from './rounds.js';
import { Track } from './track.js';
import { TreeView } from './tree.js';
import { WhatIf } from './whatifview.js';
import { W } from '../words/words.js';

export class RaceView {
  /** on: {save(as), follow(), again(), undrawn(), back()}: what the buttons around the race do. explain: the button
   *  of the story. */
  constructor(race, painter, catalog, plotlyUrl, on, explain) {
    this.race = race;
    this.painter = painter;
    this.catalog = catalog;
    this.plotlyUrl = plotlyUrl;
    this.on = on;
    this.explain = explain;
    this.lanes = new Map();
    this.player = new Player(race);
    this.track = new Track(race, painter);
    this.tree = new TreeView(race, painter);
    this.inspector = new Inspector(race, painter, catalog.notes);
    this.rounds = new Rounds(race, painter);
    this.whatif = new WhatIf(race, painter);
    this.charts = [speedup].map((spec) => this.chart(spec));
    this.own = null;
    this.waiting = '';
    this.say = this.say.bind(this);
    this.build();
    race.on('reset', () => {
      this.lanes.clear();
      this.texts.replaceChildren(...this.original());
      this.await('');
      this.stage.classList.remove('outdated');
      this.tell('');
      this.offer();
      this.title();
      this.methodCharts();
    });
    race.on('lane', ({ lane }) => this.addLane(lane));
    race.on('lane begin', () => this.pictures());
    race.on('lane begin round end head compared reset', () => painter.soon(this.say));
    race.on('shown', () => this.point());
    race.on('compared', () => this.redraw());
    race.on('round end', ({ lane }) => {
      this.lanes.get(lane.name)?.update();
      this.redraw();
    });
    race.on('head select focus', (_, type) => {
      for (const view of this.lanes.values()) view.update(type !== 'head');
      this.redraw();
    });
    race.on('begin', ({ lane }) => {
      const view = this.lanes.get(lane.name);
      view.begun();
      view.update();
    });
    race.on('lane focus', (_, type) => this.methodCharts(type === 'focus'));
    race.on('lane focus', () => this.beside());
    race.on('round', ({ lane }) => {
      if (lane.rounds.length === 1 && lane === race.focused) this.methodCharts();
    });
    race.on('end', ({ lane }) => {
      this.origin();
      if (lane === race.focused) this.methodCharts();
    }); // its first round may lack them
    race.on('end head compared', () => this.verdict());
    race.on('reset end head', () => {
      const lane = race.list.find((one) => one.end?.confidence);
      const known = lane && race.over(lane) ? lane.end.confidence : null;
      this.sure.dataset.word = known?.word ?? '';
      const right = (100 * known?.right).toFixed(0);
      put(this.sure, known ? catalog.sure[known.word].replace('{right}', right) : '');
    });
    race.on('load lane end reset', () => {
      const running = race.list.some((lane) => !lane.end);
      this.saving.hidden = running || !race.list.length; // what is still written cannot be kept
      put(this.busy, running && race.load > race.rules.load ? W.run.busyNow(race.load) : '');
    });
  }

  chart(spec) {
    return new Chart(spec, this.race, this.painter, this.plotlyUrl);
  }

  build() {
    this.badge = h('span.vl-badge');
    this.question = h('p.vl-question');
    this.thumbs = h('span.vl-question-media');
    this.texts = h('div.vl-lanes');
    // Long answers scroll in step.
    this.texts.addEventListener(
      'scroll',
      (e) => {
        if (this.race.head !== null || !this.race.finished) return;
        for (const { box } of this.lanes.values())
          if (box !== e.target && box.scrollTop !== e.target.scrollTop)
            box.scrollTop = e.target.scrollTop;
      },
      true,
    );
    this.undrawn = false; // whether the race runs unseen
    this.said = h('p.vl-verdict', { role: 'status' });
    this.slower = h('span');
    this.reasons = h('ul');
    this.slow = h(
      'details.vl-slow',
      { hidden: true },
      h('summary', icon('chevron'), this.slower),
      this.reasons,
    );
    const { follow, ...others } = (this.offers = {
      follow: button(W.chat.follow, () => this.on.follow()),
      again: button(W.run.rerun, () => this.on.again(), 'vl-secondary'),
      undrawn: button(W.run.measure, () => this.on.undrawn()),
    });
    follow.title = W.chat.followHint;
    others.again.prepend(icon('play'));
    this.offer();
    const box = h('input', {
      type: 'checkbox',
      id: 'vl-rejected',
      on: { change: () => this.node.classList.toggle('rejects', box.checked) },
    });
    this.legend = h(
      'div.vl-textlegend',
      { role: 'note', 'aria-label': W.legend.title },
      ['draft', 'relaxed', 'target', 'other', 'rejected'].map((o) =>
        h('span', {
          class: `tk ${o}`,
          title: W.learn.origins[o] ?? W.legend.otherHelp,
          text: W.legend[o],
        }),
      ),
      h('label', { for: 'vl-rejected' }, box, W.legend.showRejected),
    );
    this.grid = h('div.vl-charts');
    this.sentence = h('p.vl-headline');
    this.notice = h('p.vl-notice', { role: 'status' });
    const pair = h(
      'div.vl-pair',
      h('div.vl-stack', this.tree.node, this.grid),
      this.inspector.node,
    );
    const numbers = h('div.vl-card', this.track.node);
    this.scope = h('p.vl-scope');
    this.busy = h('p.vl-busy', { role: 'status' });
    this.sure = h('p.vl-sure', { role: 'status' });
    this.stage = h(
      'div.vl-stage',
      this.busy,
      numbers,
      this.scope,
      this.texts,
      this.sure,
      h('div.vl-under', this.legend, this.said, follow, this.slow),
      pair,
      this.rounds.node,
      this.whatif.node,
    );
    this.node = h(
      'div.vl-race.idle',
      this.notice,
      h('div.vl-start', h('h2', W.start.title), (this.starting = h('p', W.start.text))),
      h(
        'div.vl-race-head',
        this.badge,
        this.thumbs,
        this.question,
        this.player.node,
        this.saveMenu(),
      ),
      h('div.vl-says', this.sentence, h('div.vl-offers', this.explain, Object.values(others))),
      this.stage,
    );
    this.methodCharts();
  }

  /** What the machine is doing while nothing is written yet; '' once there is something to see. */
  await(text) {
    this.waiting = text;
    this.painter.now(this.say);
  }

  /** The sentence above the race. */
  say() {
    const unseen = this.undrawn || !this.race.list.some((lane) => lane.rounds.length);
    const waits = this.waiting !== '' && unseen;
    const nodes = headline(this.race, waits ? this.waiting : '');
    const words = nodes.map((n) => n.textContent ?? n).join('');
    if (this.spoken !== words) this.sentence.replaceChildren(...nodes);
    this.spoken = words;
    this.sentence.classList.toggle('waiting', waits);
  }

  /** Something that a viewer of the race must know: what went wrong, or that it differs from the
   *  form's. */
  tell(text, wrong = false) {
    put(this.notice, text);
    this.notice.classList.toggle('wrong', wrong);
  }

  /** The form requests something else now, which has changed: the race is greyed until one fits again. An error stays
   *  visible meanwhile. */
  outdated(on, changed) {
    this.stage.classList.toggle('outdated', on);
    if (on) this.player.pause();
    if (this.notice.classList.contains('wrong')) return;
    this.tell(on ? W.run.outdated(this.race.meta.question || W.chat.nothing, changed) : '');
  }

  /** A race that was shown to its end opens the lane that its sentence names, and the most instructive token, unless
   *  the visitor looks at others already. */
  point() {
    const { race } = this;
    if (race.selected) return;
    if (!race.chosen) race.setFocus(best(race)?.name, false);
    const lane = race.focused;
    const token = lane && instructive(lane);
    if (token !== null) race.select({ lane: lane.name, token });
  }

  /** Everything a race can be kept as, in one menu. */
  saveMenu() {
    const open = (on) => {
      list.hidden = !on;
      opener.setAttribute('aria-expanded', String(on));
    };
    const opener = button(W.run.save, () => open(list.hidden), 'vl-small', {
      'aria-expanded': 'false',
    });
    opener.prepend(icon('save'));
    const choices = Object.entries(W.run.saveAs).map(([as, text]) =>
      button(text, () => {
        open(false);
        opener.focus();
        this.on.save(as);
      }),
    );
    const list = h('div.vl-card.vl-menu', { hidden: true }, choices);
    const on = {
      keydown: (e) => {
        const step = { ArrowDown: 1, ArrowUp: -1, Escape: 0 }[e.key];
        if (step === undefined || list.hidden) return;
        e.preventDefault();
        const next = choices[(choices.indexOf(e.target) + step) % choices.length];
        if (!step) open(false);
        (step ? (next ?? choices.at(-1)) : opener).focus();
      },
      focusout: (e) => e.currentTarget.contains(e.relatedTarget) || open(false),
    };
    this.saving = h('span.vl-menu-box', { on }, opener, list);
    return this.saving;
  }

  title() {
    const { meta } = this.race;
    this.origin();
    this.badge.title =
      meta.source === 'recorded' ? W.run.recordedOn(meta.machine, meta.recorded) : '';
    put(this.question, meta.source ? meta.question || W.chat.nothing : '');
    this.node.classList.toggle('idle', !meta.source);
    this.node.classList.toggle('unbegun', meta.source === 'ended');
    put(this.scope, meta.scope ?? '');
    this.thumbs.replaceChildren();
    put(this.said, '');
  }

  /** Nothing to show yet, for an example of which no race is recorded. */
  idle(title) {
    put(this.starting, W.start.example(title));
  }

  /** Where the race comes from: recorded, a file, live, or live a moment ago. */
  origin() {
    const { source = '', file } = this.race.meta;
    const over = this.race.list.length > 0 && this.race.list.every((lane) => lane.end);
    this.badge.className = `vl-badge ${over ? '' : source}`;
    put(
      this.badge,
      {
        recorded: file ? W.run.opened : W.run.recorded,
        live: over ? W.run.yours : W.run.live,
        ended: W.run.yours,
      }[source] ?? '',
    );
  }

  /** The head of the race comes into view where the page was scrolled past it. */
  toTop() {
    if (this.node.getBoundingClientRect().top < 0) this.node.scrollIntoView();
  }

  pictures() {
    const list = (this.race.meta.shown ?? []).filter((m) => m.frames[0]);
    if (list.length === this.thumbs.children.length) return;
    const picture = ({ frames, name }) => {
      const title = frames.length > 1 ? W.patches.frames(frames.length) : name;
      return h('img', { src: frames[0], alt: name, title });
    };
    this.thumbs.replaceChildren(...list.map(picture));
  }

  addLane(lane) {
    const view = new LaneView(this.race, lane, this.painter);
    this.lanes.set(lane.name, view);
    this.texts.append(view.node);
    this.texts.dataset.count = this.texts.children.length;
  }

  /** For a branch, the answer that it was taken from, with the position where it leaves it. */
  original() {
    const { branch } = this.race.meta;
    if (!branch) return [];
    const { lane, before, chosen, taken, after } = branch;
    return [
      h(
        'section.vl-lane.vl-original.done',
        { 'aria-label': W.branch.title(lane) },
        h(
          'header',
          h('b', W.branch.title(lane)),
          button(W.branch.back, () => this.on.back()),
        ),
        h(
          'div.vl-text',
          { tabindex: '0' },
          h(
            'div.vl-words',
            laid(before, MOST_TEXT),
            h('b.vl-fork', { title: W.branch.fork(shown(taken)), text: laid(chosen) }),
            laid(after, MOST_TEXT),
          ),
        ),
      ),
    ];
  }

  /** On a phone the plain lane and one other stand side by side: the one in focus, else the last. */
  beside() {
    const { race } = this;
    const rivals = race.list.filter((lane) => lane !== race.baseline);
    const other = rivals.find((lane) => lane === race.focused) ?? rivals.at(-1);
    for (const [name, { node }] of this.lanes)
      node.classList.toggle('beside', [race.baseline?.name, other?.name].includes(name));
  }

  /** A chart of the focused lane's own: the first declared one whose numbers its rounds carry; where there is none, a common chart stands in its place. */
  methodCharts(now = false) {
    const lane = this.race.focused;
    if ((!lane || lane.pending) && this.own) {
      this.redraw();
      return;
    } // the next race may well ask for the same
    const own = lane?.begin.charts ?? [];
    const carried = own.find((chart) =>
      lane.rounds.some((r) => dig(r, chart.series[0]?.path ?? '') !== undefined),
    );
    const chart = carried ?? (lane?.rounds.length ? undefined : own[0]);
    const spec = chart ? declared(chart) : byDepth;
    if (spec.id !== this.own?.spec.id) {
      this.own?.remove();
      this.own = this.chart(spec);
      this.grid.replaceChildren(...[this.own, ...this.charts].map((c) => c.node));
    }
    this.redraw(now);
  }

  redraw(now = false) {
    for (const chart of [this.own, ...this.charts]) chart.update(now || this.race.finished);
  }

  repaint() {
    for (const chart of [this.own, ...this.charts]) chart.repaint();
  }

  /** What can come next: 'follow', another question about the same pictures, 'again', the same once more,
   *  'undrawn', the same without drawing it. */
  offer(...next) {
    for (const [name, node] of Object.entries(this.offers)) node.hidden = !next.includes(name);
  }

  /** When all lanes are complete: which answers agree with the plain model's, and why are some lanes
   *  slow? What is true of several lanes is said once; of many, the reasons are folded. */
  verdict() {
    const { race } = this;
    const base = race.baseline;
    const { compared } = race.meta;
    const known = race.finished && base && compared;
    const rivals = known ? race.list.filter((lane) => lane !== base) : [];
    const groups = new Map();
    for (const lane of rivals) {
      const found = compared.lanes[lane.name].agreement;
      if (found.kind === 'so_far' && !found.at) continue;
      const key = ['tie', 'differs'].includes(found.kind) ? lane : found.kind;
      groups.set(key, [found, ...(groups.get(key)?.slice(1) ?? []), lane]);
    }
    const titles = (lanes) => lanes.map((lane) => lane.title);
    const lines = [...groups.values()].map(([found, ...lanes]) =>
      W.run.agreement[found.kind](titles(lanes), found, base.given.text),
    );
    // What concerns all lanes stands in the sentence above the race.
    for (const [why, lanes] of rivals.length ? doubts(race) : [])
      if (lanes.length < rivals.length) lines.push(W.charts.noSpeedup(why, titles(lanes)));
    const slow = rivals
      .filter((lane) => doubt(race, lane) === null)
      .map((lane) => [lane.title, compared.lanes[lane.name].slow])
      .filter(([, why]) => why)
      .map((told) => W.run.slow(...told));
    const folded = slow.length > 1;
    const repeats = new Set(rivals.map((lane) => compared.lanes[lane.name].repeats));
    put(this.said, [...lines, ...(folded ? [] : slow), ...repeats].filter(Boolean).join(' · '));
    this.slow.hidden = !folded;
    put(this.slower, W.run.reasons(slow.length));
    this.reasons.replaceChildren(...(folded ? slow : []).map((text) => h('li', { text })));
  }
}
