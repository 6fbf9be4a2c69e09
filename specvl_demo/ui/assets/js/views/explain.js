/* One small card for the whole page explains its terms. */

import { h, button } from './dom.js';
import { W } from '../words/words.js';

let card = null;

/** Open the card beside its owner, or close it there: in the page's own frame, to take its colours. */
function turn(owner, title, text) {
  card ??= h('div.vl-explain', { popover: 'auto', role: 'note', id: 'vl-explain' });
  if (!card.isConnected) owner.closest('.vl').append(card);
  const same = card.matches(':popover-open') && card.owner === owner;
  card.hidePopover();
  if (same) return;
  card.owner = owner;
  card.replaceChildren(h('b', title), h('p', { text }));
  card.showPopover();
  const { left, top, bottom } = owner.getBoundingClientRect();
  const { width, height } = card.getBoundingClientRect();
  const x = Math.max(8, Math.min(left, innerWidth - width - 8));
  const y = bottom + 6 + height < innerHeight ? bottom + 6 : Math.max(8, top - height - 6);
  card.style.setProperty('left', `${x}px`);
  card.style.setProperty('top', `${y}px`);
}

/** A press opens the card; without a text to explain it, a term is plain words. */
export function term(title, text, classes = '') {
  if (!text) return h('span', { class: classes, text: title });
  const more = { 'aria-haspopup': 'true', 'aria-description': W.explain(title) };
  const node = button(title, () => turn(node, title, text), `vl-term ${classes}`, more);
  return node;
}
