/* The line above the page. Light or dark is the system's choice, or the visitor's last. */

import { store, stored } from '../state/keep.js';
import { h, iconButton } from './dom.js';
import { W } from '../words/words.js';

const KEY = 'specvl-theme';

/** machine, live: what only a page with a server has. */
export function topLine(painter, machine, live = {}) {
  const tagline = h('p', W.tagline, h('span', W.watched));
  const brand = h('div.vl-brand', live.logo, h('h1', W.name), tagline);
  const where = machine && h('span.vl-machine', { title: machine }, machine);
  return h('header.vl-top', live.skip, brand, live.tabs, where, themeButton(painter));
}

function themeButton(painter) {
  const kept = stored(KEY);
  if (kept) document.body.classList.toggle('dark', kept === 'dark');
  const node = iconButton('sun', W.theme, () => {
    const dark = document.body.classList.toggle('dark');
    node.ariaPressed = dark;
    store(KEY, dark ? 'dark' : 'light');
    painter.redraw();
  });
  node.ariaPressed = document.body.classList.contains('dark');
  return node;
}
