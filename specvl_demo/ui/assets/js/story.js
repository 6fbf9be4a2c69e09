/* A finished race told over the whole screen: one step a key press or tap, large type, a sentence a step. Given the race
   on the page; every step is made of the records of one lane. */

import { h, icon, put } from './dom.js';
import { guesser, headline } from './headline.js';
import { judged } from './lane.js';
import { laid } from './text.js';
import { stills } from './tiles.js';
import { W } from './words.js';

const PREVIOUS = ['ArrowLeft', 'ArrowUp', 'PageUp', 'Backspace'];
const NEXT = ['ArrowRight', 'ArrowDown', 'PageDown', ' ', 'Enter']; // PageDown: what a presenter's remote sends

/** What a sentence about a round is made of; own: the text that the target added, null where it added none. */
function told({ tree, path, tokens }) {
  const last = tokens.at(-1);
  return {
    drafted: tree.tokens.length - 1,
    branches: tree.parent.filter((_, node) => !tree.parent.includes(node)).length,
    kept: path.length - 1,
    struck: tree.parent.includes(path.at(-1)),
    relaxed: tokens.filter(({ origin }) => origin === 'relaxed').length,
    own: last.origin === 'target' ? laid(last.text) : null,
  };
}

export class Story {
  /** finish(): shows the race on the page to its end, before it is told. */
  constructor(race, finish) {
    Object.assign(this, { race, finish });
    this.pictures = h('div', { class: 'vl-story-pictures' });
    this.question = h('p', { class: 'vl-story-question' });
    this.text = h('p', { class: 'vl-story-text', tabindex: '0', 'aria-label': W.story.text });
    this.caption = h('p', { class: 'vl-story-caption', 'aria-live': 'polite' });
    this.count = h('span', { class: 'vl-help' });
    const tool = (name, text, fn) =>
      h('button', { type: 'button', class: 'vl-secondary', on: { click: fn } }, icon(name), text);
    this.back = tool('back', W.story.back, () => this.go(this.at - 1));
    this.next = tool('next', W.story.next, () => this.go(this.at + 1));
    this.stage = h(
      'div',
      { class: 'vl-story-stage', on: { click: () => this.go(this.at + 1) } },
      h('div', { class: 'vl-story-head' }, this.pictures, this.question),
      this.text,
    );
    this.node = h(
      'dialog',
      {
        class: 'vl-story',
        'aria-label': W.story.title,
        on: { keydown: (e) => this.key(e), close: () => this.closed() },
      },
      this.stage,
      this.caption,
      h(
        'div',
        { class: 'vl-story-tools' },
        this.back,
        this.count,
        this.next,
        tool('close', W.story.close, () => this.node.close()),
      ),
    );
    // Escape leaves the full screen first: it is meant for the story too.
    document.addEventListener('fullscreenchange', () => {
      if (!document.fullscreenElement && this.node.open) this.node.close();
    });
  }

  /** A button that opens it, there while a finished race is on the page. */
  button() {
    const node = h('button', {
      type: 'button',
      class: 'vl-small',
      text: W.story.open,
      title: W.story.openHint,
      hidden: true,
      on: { click: () => this.open() },
    });
    this.race.on('reset lane begin end', () => {
      node.hidden =
        !this.race.list.length || this.race.list.some((lane) => !lane.end?.totals.n_tokens);
    });
    return node;
  }

  /** Tell the race from its beginning, over all of the screen where the browser lets a page do so. */
  async open() {
    const { race } = this;
    this.finish();
    const drafts = (lane) => lane.rounds.some((round) => round.tree.tokens.length > 1);
    this.lane = drafts(race.focused) ? race.focused : (race.list.find(drafts) ?? race.focused);
    this.steps = [
      {},
      ...this.lane.rounds.flatMap((round) =>
        round.tree.tokens.length > 1 ? [{ round }, { round, checked: true }] : [{ round }],
      ),
      { over: true },
    ];
    this.pictures.replaceChildren(...stills(race.meta.shown));
    put(this.question, race.meta.question ?? '');
    await document.documentElement.requestFullscreen?.().catch(() => null);
    this.node.showModal();
    this.go(0);
    this.next.focus();
  }

  closed() {
    if (document.fullscreenElement) document.exitFullscreen().catch(() => null);
  }

  key(event) {
    const step = NEXT.includes(event.key) - PREVIOUS.includes(event.key);
    const to = { Home: 0, End: this.steps.length - 1 }[event.key] ?? (step ? this.at + step : null);
    const pressed = event.target.closest('button') && [' ', 'Enter'].includes(event.key);
    if (to === null || pressed) return;
    event.preventDefault();
    this.go(to);
  }

  go(to) {
    this.at = Math.min(this.steps.length - 1, Math.max(0, to));
    const { round, checked, over } = this.steps[this.at];
    this.node.classList.toggle('first', this.at === 0);
    this.text.replaceChildren(...(this.at ? this.answer(round, checked, over) : []));
    this.caption.replaceChildren(...this.says(round, checked, over));
    this.text.scrollTop = this.text.scrollHeight;
    put(this.count, W.story.count(this.at + 1, this.steps.length));
    this.back.disabled = this.at === 0;
    this.next.disabled = this.at === this.steps.length - 1;
  }

  /** The answer as far as it is written, and what is drafted behind it; the newest words alone are coloured. */
  answer(round, checked, over) {
    const { lane } = this;
    const alone = round && round.tree.tokens.length === 1;
    const done = lane.whole[over ? lane.rounds.length : round.index + (alone ? 1 : 0)];
    const piece = ({ text, origin, round: of }) =>
      h('span', {
        class: over || (alone && of === round.index) ? `tk ${origin}` : '',
        text: laid(text),
      });
    const nodes = lane.pieces.slice(0, done).map(piece);
    if (over || alone) return nodes;
    for (const { text, kind } of judged(round))
      nodes.push(h('span', { class: `tk ${checked ? kind : 'guess'}`, text }));
    const { own } = told(round);
    if (checked && own) nodes.push(h('span', { class: 'tk target', text: own }));
    return nodes;
  }

  says(round, checked, over) {
    const { lane, race } = this;
    if (over) return headline(race, '');
    const plain = lane.begin.method === 'ar';
    const by = guesser(lane);
    if (!round) return [plain ? W.story.plain : W.story.begin(lane.begin.title, by)];
    if (round.tree.tokens.length === 1) return [W.story.alone(plain)];
    return [checked ? W.story.checked(told(round)) : W.story.drafted(told(round), by)];
  }
}
