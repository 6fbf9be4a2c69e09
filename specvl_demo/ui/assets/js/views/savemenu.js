/* Everything a race can be kept as, in one menu. */

import { button, h } from './dom.js';
import { W } from '../words/words.js';

/** The menu of all that a race can be kept as. onsave(as): one was chosen.
 *  @param {(as: string) => void} onsave @param {string[]} kinds */
export function saveMenu(onsave, kinds) {
  /** Open the menu, or close it. */
  const open = (on) => {
    list.hidden = !on;
    opener.setAttribute('aria-expanded', String(on));
  };
  /** Open the menu if it is closed, else close it. */
  const turn = () => open(list.hidden);
  const opener = button(W.run.save, turn, 'vl-small', { sign: 'save', 'aria-expanded': 'false' });
  /** Close the menu, and save. */
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
  /** Close the menu when the focus leaves it. */
  const focusout = (e) => e.currentTarget.contains(e.relatedTarget) || open(false);
  return h('span.vl-menu-box', { on: { keydown, focusout } }, opener, list);
}
