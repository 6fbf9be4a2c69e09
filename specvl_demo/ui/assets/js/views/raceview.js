/* The race as one screen: its parts, and the sentences around them. */

import { answers } from './answers.js';
import { chase } from './chase.js';
import { comparison } from './comparison.js';
import { button, checkbox, h, put, refill, tell } from './dom.js';
import { headline } from './headline.js';
import { inspector } from './inspector.js';
import { RaceCharts } from './racecharts.js';
import { raceHead } from './racehead.js';
import { roundTable } from './rounds.js';
import { story } from './story.js';
import { strip } from './strip.js';
import { track } from './track.js';
import { TreeView } from './tree.js';
import { WhatIf } from './whatifview.js';
import { W } from '../words/words.js';

export class RaceView {
  notice = h('p.vl-notice', { role: 'status' });
  starting = h('p', W.start.text);
  sentence = h('p.vl-headline');
  busy = h('p.vl-busy', { role: 'status' });
  scope = h('p.vl-scope');

  /** @param {{ race: Race, stage: Stage, on: Actions, [part: string]: any }} parts */
  constructor({ race, stage, replay, painter, catalog, on }) {
    this.race = race;
    this.stage = stage;
    this.painter = painter;
    this.tree = new TreeView(race, painter);
    this.charts = new RaceCharts(race, painter);
    this.offers = {
      follow: button(W.chat.follow, on.follow, 'vl-small', { title: W.chat.followHint }),
      again: button(W.run.rerun, on.again, 'vl-secondary', { sign: 'play' }),
      undrawn: button(W.run.measure, on.undrawn),
    };
    this.body = this.buildBody(on.back, catalog);
    const told = story(replay);
    const chased = chase(replay, painter);
    const start = h('div.vl-start', h('h2', W.start.title), this.starting);
    const { again, undrawn } = this.offers;
    const offers = h('div.vl-offers', told.opener, chased.opener, again, undrawn);
    const head = [this.notice, start, raceHead(race, replay, on)];
    const says = h('div.vl-says', this.sentence, offers);
    this.node = h('div.vl-race.idle', head, says, this.body, told.dialog, chased.dialog);
    this.showOffers();
    this.listen();
  }

  buildBody(onback, { sure: confidences, notes }) {
    const { race, painter } = this;
    const { agreement, slow, sure } = comparison(race, confidences);
    const under = h('div.vl-under', this.legend(), this.offers.follow, agreement, slow);
    this.tree.node.append(strip(race, painter));
    const drawn = h('div.vl-stack', this.tree.node, this.charts.node);
    const pair = h('div.vl-pair', drawn, inspector(race, painter, notes));
    const raced = h('div.vl-card', track(race, painter));
    const shown = [this.busy, raced, this.scope, answers(race, painter, onback), sure, under, pair];
    return h('div.vl-stage', shown, roundTable(race, painter), new WhatIf(race, painter).node);
  }

  legend() {
    const box = checkbox((on) => this.node.classList.toggle('rejects', on));
    const mark = (origin) => {
      const title = W.learn.origins[origin] ?? W.legend.otherHelp;
      return h(`span.tk.${origin}`, { title, text: W.legend[origin] });
    };
    const marks = ['draft', 'relaxed', 'target', 'other', 'rejected'].map(mark);
    const shows = h('label', box, W.legend.showRejected);
    return h('div.vl-textlegend', { role: 'note', label: W.legend.title }, marks, shows);
  }

  listen() {
    const { race, stage, painter } = this;
    race.on('reset', () => {
      const { scope, source } = race.meta;
      this.node.classList.toggle('idle', !source);
      this.node.classList.toggle('unbegun', source === 'ended');
      put(this.scope, scope ?? '');
    });
    race.on('lane begin round end head compared reset', () => painter.soon(this.say));
    race.on('load lane end reset', () => {
      const busy = !race.ended && race.load > race.rules.load;
      put(this.busy, busy ? W.run.busyNow(race.load) : '');
    });
    stage.on('notice', () => tell(this.notice, stage.notice.text, stage.notice.wrong));
    stage.on('offers', () => this.showOffers());
    stage.on('waiting', () => painter.now(this.say));
    stage.on('outdated', () => this.body.classList.toggle('outdated', stage.outdated));
    stage.on('idle', (title) => put(this.starting, W.start.example(title)));
    stage.on('top', () => {
      if (this.node.getBoundingClientRect().top < 0) this.node.scrollIntoView();
    });
  }

  say = () => {
    const { race, stage } = this;
    const unseen = stage.undrawn || !race.list.some((lane) => lane.rounds.length);
    const waits = stage.waiting !== '' && unseen;
    const nodes = waits ? [stage.waiting] : headline(race);
    const words = nodes.map((n) => n.textContent ?? n).join('');
    if (this.spoken !== words) refill(this.sentence, nodes);
    this.spoken = words;
    this.sentence.classList.toggle('waiting', waits);
  };

  showOffers() {
    for (const [name, node] of Object.entries(this.offers))
      node.hidden = !this.stage.offers.some((offer) => offer === name);
  }
}
