/* The race as one screen: puts its parts together, and draws the sentences around them. */

import { Answers } from './answers.js';
import { Chase } from './chase.js';
import { Comparison } from './comparison.js';
import { button, checkbox, h, put, refill, tell } from './dom.js';
import { headline } from './headline.js';
import { Inspector } from './inspector.js';
import { RaceCharts } from './racecharts.js';
import { RaceHead } from './racehead.js';
import { Rounds } from './rounds.js';
import { Strip } from './strip.js';
import { Track } from './track.js';
import { TreeView } from './tree.js';
import { WhatIf } from './whatifview.js';
import { W } from '../words/words.js';

export class RaceView {
  /** url: of the drawing library. @param {{ race: Race, stage: Stage, replay: Replay, painter: Painter,
   *  story: Story, catalog: any, url: string, on: Actions }} parts */
  constructor({ race, stage, replay, painter, story, catalog, url, on }) {
    this.race = race;
    this.stage = stage;
    this.painter = painter;
    this.head = new RaceHead(race, replay, on);
    this.answers = new Answers(race, painter, on.back);
    this.comparison = new Comparison(race, catalog.sure);
    this.tree = new TreeView(race, painter);
    this.strip = new Strip(race, painter);
    this.inspector = new Inspector(race, painter, catalog.notes);
    this.charts = new RaceCharts(race, painter, url);
    this.track = new Track(race, painter);
    this.chase = new Chase(replay, painter);
    this.folded = [new Rounds(race, painter).node, new WhatIf(race, painter).node];
    this.node = this.build(on, story.button());
    this.listen();
  }

  /** explain: the button that tells the race. */
  build(on, explain) {
    this.offers = {
      follow: button(W.chat.follow, on.follow, 'vl-small', { title: W.chat.followHint }),
      again: button(W.run.rerun, on.again, 'vl-secondary', { sign: 'play' }),
      undrawn: button(W.run.measure, on.undrawn),
    };
    const { follow, again, undrawn } = this.offers;
    this.showOffers();
    this.sentence = h('p.vl-headline');
    this.notice = h('p.vl-notice', { role: 'status' });
    this.starting = h('p', W.start.text);
    this.scope = h('p.vl-scope');
    this.busy = h('p.vl-busy', { role: 'status' });
    const { agreement, slow, sure } = this.comparison;
    this.tree.node.append(this.strip.node);
    const drawn = h('div.vl-stack', this.tree.node, this.charts.node);
    const pair = h('div.vl-pair', drawn, this.inspector.node);
    const under = h('div.vl-under', this.legend(), follow, agreement, slow);
    const numbers = h('div.vl-card', this.track.node);
    const answers = [this.scope, this.answers.node, sure, under];
    this.body = h('div.vl-stage', this.busy, numbers, answers, pair, this.folded);
    const start = h('div.vl-start', h('h2', W.start.title), this.starting);
    const offers = h('div.vl-offers', explain, this.chase.button(), again, undrawn);
    const head = [this.notice, start, this.head.node, h('div.vl-says', this.sentence, offers)];
    return h('div.vl-race.idle', head, this.body, this.chase.node);
  }

  /** What the colours of the text mean. */
  legend() {
    const reject = (on) => this.node.classList.toggle('rejects', on);
    const box = checkbox(reject, { id: 'vl-rejected' });
    const mark = (origin) => {
      const title = W.learn.origins[origin] ?? W.legend.otherHelp;
      return h(`span.tk.${origin}`, { title, text: W.legend[origin] });
    };
    const marks = ['draft', 'relaxed', 'target', 'other', 'rejected'].map(mark);
    const shows = h('label', { for: 'vl-rejected' }, box, W.legend.showRejected);
    return h('div.vl-textlegend', { role: 'note', 'aria-label': W.legend.title }, marks, shows);
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
      put(this.busy, !race.ended && race.load > race.rules.load ? W.run.busyNow(race.load) : '');
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

  /** Write the sentence above the race. */
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

  /** Show the buttons of what can come next. */
  showOffers() {
    for (const [name, node] of Object.entries(this.offers))
      node.hidden = !this.stage.offers.some((offer) => offer === name);
  }
}
