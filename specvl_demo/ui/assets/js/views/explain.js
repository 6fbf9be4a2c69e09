/* Terms with their explanation, which opens by click, touch and keyboard: one small card for the whole page, closed by
   Escape or a press elsewhere. */

import { h, button } from './dom.js';
import { W } from '../words/words.js';

let card = null;

/** The card, in the page's own frame so that it takes its colours. */
function place(button, title, text) {
  card ??= h('div.vl-explain', { popover: 'auto', role: 'note', id: 'vl-explain' });
  if (!card.isConnected) button.closest('.vl').append(card);
  const same = card.matches(':popover-open') && card.owner === button;
  card.hidePopover();
  if (same) return;
  card.owner = button;
  card.replaceChildren(h('b', title), h('p', { text }));
  card.showPopover();
  const { left, top, bottom } = button.getBoundingClientRect();
  const { width, height } = card.getBoundingClientRect();
  const x = Math.max(8, Math.min(left, innerWidth - width - 8));
  const y = bottom + 6 + height < innerHeight ? bottom + 6 : Math.max(8, top - height - 6);
  card.style.setProperty('left', `${x}px`);
  card.style.setProperty('top', `${y}px`);
}

/** A term as a button that explains itself. */
export function term(title, text, classes = '') {
  if (!text) return h('span', { class: classes, text: title });
  const told = { 'aria-haspopup': 'true', 'aria-description': W.explain(title) };
  const node = button(title, () => place(node, title, text), `vl-term ${classes}`, told);
  return node;
}

/** A heading, or another element, around a term. */
export function explained(tag, title, text) {
  return h(tag, term(title, text));
}
