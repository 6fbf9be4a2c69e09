/* Light or dark: the system's choice until the visitor makes one, which this browser then remembers. */

import { h, icon } from './dom.js';
import { W } from './words.js';

const KEY = 'specvl-theme';

export function themeButton(onchange) {
  const kept = localStorage.getItem(KEY);
  if (kept) document.body.classList.toggle('dark', kept === 'dark');
  return h(
    'button.vl-tool',
    {
      'aria-label': W.theme,
      title: W.theme,
      on: {
        click: () => {
          const dark = document.body.classList.toggle('dark');
          localStorage.setItem(KEY, dark ? 'dark' : 'light');
          onchange();
        },
      },
    },
    icon('sun'),
  );
}
