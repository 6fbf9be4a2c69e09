/* What lies over the page is closed by the browser's Back, as by Escape. */

const layers = []; // what closes each layer over the page, the uppermost last

addEventListener('popstate', () => {
  while (layers.length > (history.state?.over ?? 0)) layers.pop()();
});
if (history.state?.over) history.replaceState(null, ''); // of a page that was loaded again

/** Returns what to call when it has opened, and when it has closed. */
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

/** A dialog over the whole screen, where the browser lets a page fill it. Returns what opens it. */
export function fillsScreen(dialog) {
  const { opened, closed } = backCloses(() => dialog.close());
  dialog.addEventListener('close', () => {
    closed();
    document.exitFullscreen?.().catch(() => null);
  });
  // Escape leaves the full screen first: it is meant for the dialog too.
  document.addEventListener('fullscreenchange', () => {
    if (!document.fullscreenElement) dialog.close();
  });
  return async () => {
    await document.documentElement.requestFullscreen?.().catch(() => null);
    dialog.showModal();
    opened();
  };
}
