/* Earlier questions with their answers, which the next one includes; the last is the race on the page. */

import { button, h, iconButton, refill } from './dom.js';
import { W } from '../words/words.js';

export class Conversation {
  constructor(form, followUps) {
    this.form = form;
    this.followUps = followUps;
    this.list = h('ol.vl-turns');
    const { clear, title } = W.chat;
    const anew = button(clear, () => followUps.anew());
    const head = h('header', h('span.vl-label', title), anew);
    const props = { hidden: true, label: title };
    this.node = h('section.vl-conversation', props, head, this.list);
    form.on('turns', () => this.draw());
  }

  draw() {
    const { turns } = this.form;
    this.node.hidden = !turns.length;
    const lines = turns.map((turn, i) => this.line(turn, i, i + 1 < turns.length));
    refill(this.list, lines);
    this.list.scrollTop = this.list.scrollHeight;
  }

  line({ answer, from, media, question }, i, followed) {
    const { followUps } = this;
    const pictures = media.map(({ kind, name, url }) =>
      kind === 'image' ? h('img', { src: url, alt: name }) : h('span.vl-badge', name),
    );
    const told = from && h('small.vl-help', W.chat.from(from));
    const words = h('p', h('b', question || W.chat.nothing), h('span', answer), told);
    const tool = (sign, text, fn) => iconButton(sign, text, fn, 'vl-reset', 14);
    return h('li', pictures, words, [
      tool('edit', W.chat.edit(i + 1, followed), () => followUps.takeUp(i, false)),
      tool('reset', W.chat.retry(i + 1, followed), () => followUps.takeUp(i, true)),
      tool('copy', W.chat.copy(i + 1), () => navigator.clipboard?.writeText(answer)),
    ]);
  }
}
