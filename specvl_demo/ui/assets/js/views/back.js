/* What lies over the page, such as a dialog, is closed by the browser's Back, as by Escape, before a
   visitor leaves the page. */

const layers = []; // what closes each layer over the page, the uppermost last

addEventListener('popstate', () => {
  while (layers.length > (history.state?.over ?? 0)) layers.pop()();
});
if (history.state?.over) history.replaceState(null, ''); // of a page that was loaded again

/** Lets Back close what lies over the page, as Escape does, instead of leaving. Returns what to call
 *  when it has opened, and when it has closed. */
export function backCloses(close) {
  return {
    opened() {
      layers.push(close);
      history.pushState({ over: layers.length }, '', location.href);
    },
    closed() {
      const at = layers.indexOf(close);
      if (at < 0) return; // Back has closed it
      layers.splice(at, 1);
      if (history.state?.over) history.back();
    },
  };
}

/** The same for a dialog: what to call when it opens. */
export function backClosesDialog(dialog) {
  const { opened, closed } = backCloses(() => dialog.close());
  dialog.addEventListener('close', closed);
  return opened;
}
