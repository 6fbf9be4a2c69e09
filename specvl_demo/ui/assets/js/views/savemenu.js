/* Everything a race can be kept as, in one menu. */

import { button, h } from './dom.js';
import { W } from '../words/words.js';

/** onsave(as): one of the kinds was chosen. */
export function saveMenu(onsave, kinds) {
  const open = (on) => {
    list.hidden = !on;
    opener.setAttribute('aria-expanded', on);
  };
  const turn = () => open(list.hidden);
  const opener = button(W.run.save, turn, 'vl-small', { sign: 'save', 'aria-expanded': 'false' });
  const choose = (as) => {
    open(false);
    opener.focus();
    onsave(as);
  };
  const choices = kinds.map((as) => button(W.run.saveAs[as], () => choose(as)));
  const list = h('div.vl-card.vl-menu', { hidden: true }, choices);
  /** Arrows lead through the menu, Escape closes it. */
  const keydown = (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Escape: 0 }[e.key];
    if (step === undefined || list.hidden) return;
    e.preventDefault();
    const next = choices[(choices.indexOf(e.target) + step) % choices.length];
    if (!step) open(false);
    (step ? (next ?? choices.at(-1)) : opener).focus();
  };
  const focusout = (e) => e.currentTarget.contains(e.relatedTarget) || open(false);
  return h('span.vl-menu-box', { keydown, focusout }, opener, list);
}
