/* What is told below the answers of a race that is over: which agree, where each speed comes from, how sure the model
   was. */

import { folded, h, put } from './dom.js';
import { doubts } from '../records/verdict.js';
import { W } from '../words/words.js';

export class Comparison {
  /** sure: what the page says of each word of confidence. @param {Race} race */
  constructor(race, sure) {
    this.race = race;
    this.sentences = sure;
    this.agreement = h('p.vl-verdict', { role: 'status' });
    this.sure = h('p.vl-sure', { role: 'status' });
    this.slower = h('span');
    this.reasons = h('ul');
    this.slow = folded('details.vl-slow', this.slower, { hidden: true }, this.reasons);
    race.on('reset', () => put(this.agreement, ''));
    race.on('end head compared', () => this.draw());
    race.on('reset end head', () => this.drawConfidence());
  }

  /** Write which answers agree and where each speed comes from: what is true of several lanes once;
   *  of many, the reasons are folded. */
  draw() {
    const { race } = this;
    const { baseline } = race;
    const { compared } = race.meta;
    const known = race.finished && baseline && compared;
    const rivals = known ? race.rivals : [];
    const speeds = (compared?.cut ? [] : rivals)
      .map((lane) => [lane.title, compared.lanes[lane.name].why])
      .filter(([, why]) => why)
      .map((pair) => pair.join(' '));
    const many = speeds.length > 1;
    const repeats = new Set(rivals.map((lane) => compared.lanes[lane.name].repeats));
    const lines = [...this.agreements(rivals), ...(many ? [] : speeds), ...repeats];
    put(this.agreement, lines.filter(Boolean).join(' · '));
    this.slow.hidden = !many;
    put(this.slower, W.run.reasons(speeds.length));
    this.reasons.replaceChildren(...(many ? speeds : []).map((text) => h('li', { text })));
  }

  /** Sentences: how lanes agree with AR, and whose speedup is doubtful. */
  agreements(rivals) {
    const { race } = this;
    const titles = (lanes) => lanes.map((lane) => lane.title);
    const groups = new Map();
    for (const lane of rivals) {
      const { agreement } = race.meta.compared.lanes[lane.name];
      const { kind, at } = agreement;
      if (kind === 'so_far' && !at) continue;
      const key = ['tie', 'differs'].includes(kind) ? lane : kind;
      groups.set(key, { agreement, lanes: [...(groups.get(key)?.lanes ?? []), lane] });
    }
    const lines = [...groups.values()].map(({ agreement, lanes }) =>
      W.run.agreement[agreement.kind](titles(lanes), agreement, race.baseline.given.text),
    );
    // What concerns all lanes stands in the sentence above the race.
    for (const [why, lanes] of rivals.length ? doubts(race) : [])
      if (lanes.length < rivals.length) lines.push(W.charts.noSpeedup(why, titles(lanes)));
    return lines;
  }

  drawConfidence() {
    const { race } = this;
    const lane = race.list.find((other) => other.end?.confidence);
    const confidence = lane && race.over(lane) ? lane.end.confidence : null;
    const right = (100 * (confidence?.right ?? 0)).toFixed(0);
    this.sure.dataset.word = confidence?.word ?? '';
    put(this.sure, confidence ? this.sentences[confidence.word].replace('{right}', right) : '');
  }
}
