/* The conversation so far: earlier questions with their answers, which the next question includes,
   with pictures; the last one is the race on the page. A visitor can continue from each of them:
   editing one drops what came after it. */

import { button, h, iconButton } from './dom.js';
import { W } from '../words/words.js';

export class Conversation {
  /** onedit(turn, again): put an earlier question back into the form, and ask it again. onchange:
   *  the history has changed. onclear: a new conversation. */
  constructor(onedit, onchange, onclear) {
    this.onedit = onedit;
    this.onchange = onchange;
    this.turns = [];
    this.list = h('ol.vl-turns');
    this.node = h(
      'section.vl-conversation',
      { hidden: true, 'aria-label': W.chat.title },
      h('header', h('span.vl-label', W.chat.title), button(W.chat.clear, onclear)),
      this.list,
    );
  }

  /** Every turn: {question, answer, media, from}; from: the lane that wrote the answer of a race that was stopped. */
  set(turns) {
    this.turns = turns;
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
          tool('edit', W.chat.edit(i + 1, i + 1 < turns.length), () => this.edit(i, false)),
          tool('reset', W.chat.retry(i + 1, i + 1 < turns.length), () => this.edit(i, true)),
          tool('copy', W.chat.copy(i + 1), () => navigator.clipboard?.writeText(turn.answer)),
        ),
      ),
    );
    this.list.scrollTop = this.list.scrollHeight;
    this.onchange(turns);
  }

  edit(i, again) {
    const turn = this.turns[i];
    this.set(this.turns.slice(0, i));
    this.onedit(turn, again);
  }
}

const tool = (name, text, fn) => iconButton(name, text, fn, 'vl-reset', 14);
