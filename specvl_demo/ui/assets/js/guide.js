/* A guided tour of the race on the page, in three steps: the two lanes, where a word comes from,
   what it gained. Each step marks a part of the page and scrolls to it. */

import { backCloses } from './back.js';
import { button, h, put } from './dom.js';
import { instructive } from './headline.js';
import { W } from './words.js';

export class Guide {
  /** parts: the elements that the steps point at, [answers, tree and inspector, numbers]. */
  constructor(race, player, parts) {
    Object.assign(this, { race, player, parts });
    this.at = -1;
    this.text = h('p', { 'aria-live': 'polite' });
    this.count = h('span.vl-help');
    this.next = button('', () => this.go(this.at + 1), 'vl-secondary');
    this.node = h(
      'section.vl-card.vl-guide',
      { hidden: true, 'aria-label': W.guide.title },
      this.count,
      this.text,
      this.next,
      button(W.guide.close, () => this.close()),
    );
    this.open = button(W.guide.open, () => this.go(0), 'vl-small vl-guide-open');
    this.back = backCloses(() => this.close());
    race.on('reset', () => this.hide()); // its sentences are about the race before
  }

  go(step) {
    this.mark(false);
    if (step >= W.guide.steps.length) {
      this.close();
      return;
    }
    this.at = step;
    const { race } = this;
    const lane = race.focused;
    if (step === 0) this.player.replay();
    else {
      this.player.finish();
      race.select({
        lane: lane.name,
        token: instructive(lane) ?? Math.min(4, lane.tokens.length - 1),
        picked: step === 1,
      });
    }
    const t = race.now(lane);
    put(this.count, W.guide.count(step + 1, W.guide.steps.length));
    put(
      this.text,
      W.guide.steps[step](lane.title, {
        tau: t.tau?.toFixed(2),
        rounds: lane.rounds.length,
        tokens: lane.tokens.length,
      }),
    );
    put(this.next, step + 1 < W.guide.steps.length ? W.guide.next : W.guide.done);
    if (this.node.hidden) this.back.opened();
    this.node.hidden = false;
    this.mark(true);
    this.parts[step].scrollIntoView({ block: 'nearest', behavior: 'smooth' });
    this.next.focus({ preventScroll: true });
  }

  mark(on) {
    this.parts[this.at]?.classList.toggle('vl-marked', on);
  }

  hide() {
    this.mark(false);
    this.at = -1;
    if (this.node.hidden) return;
    this.node.hidden = true;
    this.back.closed();
  }

  close() {
    this.hide();
    this.open.focus({ preventScroll: true });
  }
}
