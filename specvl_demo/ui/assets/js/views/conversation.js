/* Earlier questions and answers, which the next one includes. */

import { button, h, iconButton, refill } from './dom.js';
import { W } from '../words/words.js';

/** @param {Form} form @param {FollowUps} followUps */
export function conversation(form, followUps) {
  const { clear, title } = W.chat;
  const list = h('ol.vl-turns');
  const anew = button(clear, () => followUps.anew());
  const head = h('header', h('span.vl-label', title), anew);
  const node = h('section.vl-conversation', { hidden: true, label: title }, head, list);
  form.on('turns', () => {
    const { turns } = form;
    node.hidden = !turns.length;
    refill(
      list,
      turns.map((turn, i) => lineOf(followUps, turn, i, i + 1 < turns.length)),
    );
    list.scrollTop = list.scrollHeight;
  });
  return node;
}

/** @param {FollowUps} followUps @param {Turn} turn */
function lineOf(followUps, { answer, from, media, question }, i, followed) {
  const pictures = media.map(({ kind, name, url }) =>
    kind === 'image' ? h('img', { src: url, alt: name }) : h('span.vl-badge', name),
  );
  const told = from && h('small.vl-help', W.chat.from(from));
  const words = h('p', h('b', question || W.chat.nothing), h('span', answer), told);
  const tool = (sign, text, fn) => iconButton(sign, text, fn, 'vl-reset');
  return h('li', pictures, words, [
    tool('edit', W.chat.edit(i + 1, followed), () => followUps.takeUp(i, false)),
    tool('reset', W.chat.retry(i + 1, followed), () => followUps.takeUp(i, true)),
  ]);
}
