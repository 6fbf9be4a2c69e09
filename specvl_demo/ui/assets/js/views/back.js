/* What lies over the page is closed by the browser's Back, as by Escape. */

import { button, h, put, refill } from './dom.js';
import { stills } from './tiles.js';
import { W } from '../words/words.js';

const layers = []; // what closes each layer over the page, the uppermost last

addEventListener('popstate', () => {
  while (layers.length > (history.state?.over ?? 0)) layers.pop()();
});
if (history.state?.over) history.replaceState(null, ''); // of a page that was loaded again

/** Have the browser's Back close a layer. Returns what to call when it has opened and closed. */
export function backCloses(close) {
  return {
    opened() {
      layers.push(close);
      history.scrollRestoration = 'manual';
      history.pushState({ ...history.state, over: layers.length }, '');
    },
    closed() {
      const at = layers.indexOf(close);
      if (at < 0) return; // Back has closed it
      layers.splice(at, 1);
      if (history.state?.over) history.back();
    },
  };
}

/** A dialog over the whole screen, and `fill`, which opens it. back, on: for arrows, PageUp and PageDown (a
 *  presenter's remote); more: for other keys, though Enter presses a button. */
export function overScreen({ title, keys }, { back, on, ...more }, stage, tools) {
  const moves = { ArrowLeft: back, PageUp: back, ArrowRight: on, PageDown: on, ...more };
  const keydown = (event) => {
    const presses = event.key === 'Enter' && event.target.closest('button');
    if (!Object.hasOwn(moves, event.key) || presses) return;
    event.preventDefault();
    moves[event.key]();
  };
  const keyup = (event) => event.key === ' ' && event.preventDefault(); // Firefox presses buttons then
  const close = tool(W.close, () => dialog.close());
  const dialog = h(
    'dialog.vl-story',
    { label: title, keydown, keyup },
    stage,
    h('div.vl-story-tools', tools, h('span.vl-help.vl-keys', keys), close),
  );
  const { opened, closed } = backCloses(() => dialog.close());
  dialog.addEventListener('close', () => {
    closed();
    document.exitFullscreen?.().catch(() => null);
  });
  // Escape leaves the full screen first: it is meant for the dialog too.
  document.addEventListener('fullscreenchange', () => {
    if (!document.fullscreenElement) dialog.close();
  });
  const fill = async () => {
    await document.documentElement.requestFullscreen?.().catch(() => null);
    dialog.showModal();
    opened();
  };
  return { dialog, fill };
}

/** What a race asks, and `tell`, which writes it. */
export function questionHead(race, ...more) {
  const pictures = h('div.vl-story-pictures');
  const question = h('p');
  const tell = () => {
    refill(pictures, stills(race.meta.shown));
    put(question, race.meta.question ?? '');
  };
  return { head: h('div.vl-story-head', pictures, question, more), tell };
}

export const tool = (text, does) => button(text, does, 'vl-secondary');
