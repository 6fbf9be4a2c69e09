/* The conversation so far: earlier questions with their answers, which the next question includes; the last one is the
   race on the page. Editing one drops what came after it. */

import { button, h, iconButton } from './dom.js';
import { W } from '../words/words.js';

/** @import { FollowUps } from '../state/followups.js' */
/** @import { Form } from '../state/form.js' */

/** Shows the earlier questions with their answers. */
export class Conversation {
  /** @param {Form} form @param {FollowUps} followUps */
  constructor(form, followUps) {
    this.form = form;
    this.followUps = followUps;
    this.list = h('ol.vl-turns');
    const { clear, title } = W.chat;
    const anew = button(clear, () => followUps.anew());
    const head = h('header', h('span.vl-label', title), anew);
    const props = { hidden: true, 'aria-label': title };
    this.node = h('section.vl-conversation', props, head, this.list);
    form.on('turns', () => this.draw());
  }

  draw() {
    const { turns } = this.form;
    this.node.hidden = !turns.length;
    this.list.replaceChildren(...turns.map((turn, i) => this.line(turn, i, i + 1 < turns.length)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** A question with its answer, and the buttons that edit, repeat and copy. later: whether
   *  something was asked after it. @param {import('../state/types.js').Turn} turn */
  line({ answer, from, media, question }, i, later) {
    const { followUps } = this;
    const pictures = media.map(({ kind, name, url }) =>
      kind === 'image' ? h('img', { src: url, alt: name }) : h('span.vl-badge', name),
    );
    const told = from && h('small.vl-help', W.chat.from(from));
    const words = h('p', h('b', question || W.chat.nothing), h('span', answer), told);
    const tools = [
      tool('edit', W.chat.edit(i + 1, later), () => followUps.takeUp(i, false)),
      tool('reset', W.chat.retry(i + 1, later), () => followUps.takeUp(i, true)),
      tool('copy', W.chat.copy(i + 1), () => navigator.clipboard?.writeText(answer)),
    ];
    return h('li', ...pictures, words, tools);
  }
}

/** A small button with the icon of this name. */
const tool = (icon, text, fn) => iconButton(icon, text, fn, 'vl-reset', 14);
