/* One lane's answer: text coloured by origin, token by token, as far as the race is shown.
   Colours come from the records' origins; a second cue (line style under the text) says the same. */

import { h, put, shown } from './dom.js';
import { rejected } from './fold.js';
import { W } from './words.js';

export class LaneView {
  constructor(race, lane, painter) {
    this.race = race;
    this.lane = lane;
    this.painter = painter;
    this.drawn = 0; // rounds on the page
    this.ends = []; // ends[k]: child nodes of the text after k + 1 rounds
    this.plain = lane.begin.method === 'ar';
    this.draw = this.draw.bind(this);
    this.build();
  }

  build() {
    const { begin } = this.lane;
    this.text = h('div', {
      class: `vl-text${this.plain ? ' plain' : ''}`, tabindex: '0', role: 'log', 'aria-live': 'off',
      'aria-label': W.lane.answer(begin.title),
      on: {
        click: (e) => this.pick(e.target.closest('[data-i]')),
        keydown: (e) => this.key(e),
        pointerover: (e) => this.hover(e.target.closest('[data-i]')),
        pointerleave: () => this.hover(null),
      },
    });
    this.note = h('span', { class: 'vl-lane-note' });
    this.node = h('section', { class: 'vl-lane', data: { lane: this.lane.number } },
      h('header', {},
        h('button', { type: 'button', class: 'vl-lane-name', 'aria-label': W.lane.focus(begin.title),
          on: { click: () => this.race.setFocus(this.lane.name) } },
        h('i', { class: 'vl-swatch' }), begin.title),
        !begin.lossless && h('span', { class: 'vl-badge lossy', text: W.lane.lossy, title: W.lane.lossyHelp }), this.note),
      this.text);
    this.mark();
  }

  /** Show the lane as far as the race is shown; more or fewer rounds than before. */
  update() { this.painter.soon(this.draw); }

  draw() {
    const want = this.race.shown(this.lane);
    if (want < this.drawn) this.cut(want);
    if (want > this.drawn) this.append(want);
    this.mark();
  }

  cut(want) {
    const keep = want ? this.ends[want - 1] : 0;
    while (this.text.childNodes.length > keep) this.text.lastChild.remove();
    this.ends.length = want;
    this.drawn = want;
  }

  append(want) {
    const box = this.text;
    const follow = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
    const part = document.createDocumentFragment();
    let count = box.childNodes.length;
    let i = this.lane.at(this.drawn).tokens;
    for (let k = this.drawn; k < want; k += 1) {
      const round = this.lane.rounds[k];
      const last = round.tokens.length - 1;
      round.tokens.forEach((token, at) => {
        if (at === last && token.origin === 'target' && !this.plain) {
          const turned = this.turnedDown(round);
          if (turned) { part.append(turned); count += 1; }
        }
        part.append(h('span', { class: `tk ${this.plain ? 'ar' : token.origin}`, data: { i: i++, r: k }, text: token.text }));
        count += 1;
      });
      this.ends[k] = count;
    }
    this.drawn = want;
    box.append(part);
    if (follow) box.scrollTop = box.scrollHeight;
  }

  /** The drafter's continuation that the target turned down, struck through; null where nothing was. */
  turnedDown(round) {
    const { texts } = round.tree;
    const nodes = rejected(round);
    if (!texts || !nodes.length) return null;
    return h('del', { class: 'tk rejected', title: W.lane.rejectedHelp, text: nodes.map((n) => texts[n]).join('') });
  }

  mark() {
    const { race, lane } = this;
    this.node.classList.toggle('focused', race.focus === lane.name);
    const s = race.selected;
    const token = s && s.lane === lane.name && s.token !== undefined ? s.token : null;
    const old = this.text.querySelector('.selected');
    const now = token === null ? null : this.text.querySelector(`[data-i="${token}"]`);
    if (old !== now) {
      old?.classList.remove('selected');
      now?.classList.add('selected');
    }
    const round = s && s.lane === lane.name ? (s.round ?? lane.tokens[s.token]?.round) : null;
    this.light(round ?? null);
    const waiting = !lane.rounds.length && !lane.end;
    this.node.classList.toggle('waiting', waiting);
    put(this.note, this.ending());
  }

  ending() {
    const { lane, race } = this;
    if (!race.over(lane)) return '';
    return lane.end.stop === 'error' ? lane.end.message ?? W.stop.error : W.stop[lane.end.stop];
  }

  /** Mark the tokens that one round wrote together. */
  light(round) {
    if (round === this.lit) return;
    this.lit = round;
    for (const old of this.text.querySelectorAll('.same')) old.classList.remove('same');
    if (round !== null) for (const node of this.text.querySelectorAll(`[data-r="${round}"]`)) node.classList.add('same');
  }

  hover(node) {
    if (this.race.selected?.lane === this.lane.name) return;
    this.light(node && !this.plain ? Number(node.dataset.r) : null);
  }

  pick(node) {
    if (node) this.race.select({ lane: this.lane.name, token: Number(node.dataset.i) });
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const last = this.lane.at(this.drawn).tokens - 1;
    if (event.key === 'Escape') this.race.select(null);
    else if (step === undefined || last < 0) return;
    else {
      const s = this.race.selected;
      const at = s?.lane === this.lane.name && s.token !== undefined ? s.token : step > 0 ? -1 : 0;
      const token = Math.min(last, Math.max(0, at + step));
      this.race.select({ lane: this.lane.name, token });
      this.text.querySelector(`[data-i="${token}"]`)?.scrollIntoView({ block: 'nearest' });
    }
    event.preventDefault();
  }
}

/** A token as it stands in the inspector and in tables. */
export function tokenChip(text, origin) {
  return h('code', { class: `tk chip ${origin}`, text: shown(text) });
}
