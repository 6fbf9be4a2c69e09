/* The conversation so far: earlier questions with their answers, which the next question includes,
   with pictures; the last one is the race on the page. A visitor can continue from each of them:
   editing one drops what came after it. */

import { button, h, iconButton } from './dom.js';
import { W } from '../words/words.js';

/** @import { FollowUps } from '../state/followups.js' */
/** @import { Form } from '../state/form.js' */

export class Conversation {
  /** @param {Form} form @param {FollowUps} followUps */
  constructor(form, followUps) {
    this.form = form;
    this.followUps = followUps;
    this.list = h('ol.vl-turns');
    const clear = button(W.chat.clear, () => followUps.anew());
    this.node = h(
      'section.vl-conversation',
      { hidden: true, 'aria-label': W.chat.title },
      h('header', h('span.vl-label', W.chat.title), clear),
      this.list,
    );
    form.on('turns', () => this.draw());
  }

  draw() {
    const { form, followUps } = this;
    const { turns } = form;
    this.node.hidden = !turns.length;
    this.list.replaceChildren(
      ...turns.map((turn, i) =>
        h(
          'li',
          turn.media.map((m) =>
            m.kind === 'image' ? h('img', { src: m.url, alt: m.name }) : h('span.vl-badge', m.name),
          ),
          h(
            'p',
            h('b', turn.question || W.chat.nothing),
            h('span', turn.answer),
            turn.from && h('small.vl-help', W.chat.from(turn.from)),
          ),
          tool('edit', W.chat.edit(i + 1, i + 1 < turns.length), () => followUps.takeUp(i, false)),
          tool('reset', W.chat.retry(i + 1, i + 1 < turns.length), () => followUps.takeUp(i, true)),
          tool('copy', W.chat.copy(i + 1), () => navigator.clipboard?.writeText(turn.answer)),
        ),
      ),
    );
    this.list.scrollTop = this.list.scrollHeight;
  }
}

const tool = (name, text, fn) => iconButton(name, text, fn, 'vl-reset', 14);
