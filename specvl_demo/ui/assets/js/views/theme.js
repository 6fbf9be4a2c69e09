/* Light or dark: the system's choice until the visitor makes one, which this browser remembers. */

import { store, stored } from '../state/keep.js';
import { iconButton } from './dom.js';
import { W } from '../words/words.js';

const KEY = 'specvl-theme';

export function themeButton(onchange) {
  const kept = stored(KEY);
  if (kept) document.body.classList.toggle('dark', kept === 'dark');
  return iconButton('sun', W.theme, () => {
    const dark = document.body.classList.toggle('dark');
    store(KEY, dark ? 'dark' : 'light');
    onchange();
  });
}
