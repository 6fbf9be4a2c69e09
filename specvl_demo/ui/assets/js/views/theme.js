/* Light or dark: the system's choice until the visitor makes one, which this browser then remembers. */

import { iconButton } from './dom.js';
import { W } from '../words/words.js';

const KEY = 'specvl-theme';

export function themeButton(onchange) {
  const kept = localStorage.getItem(KEY);
  if (kept) document.body.classList.toggle('dark', kept === 'dark');
  return iconButton('sun', W.theme, () => {
    const dark = document.body.classList.toggle('dark');
    localStorage.setItem(KEY, dark ? 'dark' : 'light');
    onchange();
  });
}
