/* When things are drawn. Text goes on screen in the next frame; charts wait for frames without text, at most one a
   frame, the one that waits longest, and each chart's rate adapts so that all of them together take a quarter of the main thread at most.
   Charts off screen are not drawn until they come into view. */

const BUDGET = 0.25;
const SHORTEST_MS = 200;
const PATIENCE_MS = 150; // so long a chart gives way to text

export class Painter {
  constructor() {
    this.texts = new Set();
    this.charts = new Map();
    this.scheduled = false;
    this.frame = this.frame.bind(this);
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) this.entry(entry.target).visible = entry.isIntersecting;
      this.wake();
    }, { rootMargin: '120px' });
  }

  entry(node) { return this.charts.get(node) ?? {}; }

  /** A chart: `draw` is called when the chart is dirty, visible and due. */
  register(node, draw) {
    this.charts.set(node, { draw, dirty: false, visible: false, cost: 8, due: 0 });
    this.seen.observe(node);
  }

  forget(node) {
    this.charts.delete(node);
    this.seen.unobserve(node);
  }

  /** This chart has something new to show; `now` skips its turn's waiting time. */
  dirty(node, now = false) {
    const chart = this.charts.get(node);
    if (!chart) return;
    chart.dirty = true;
    if (now) chart.due = 0;
    this.wake();
  }

  /** Run `fn` in the next frame, once however often it is asked for. */
  soon(fn) {
    this.texts.add(fn);
    this.wake();
  }

  wake() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(this.frame);
  }

  frame(now) {
    this.scheduled = false;
    const texts = [...this.texts];
    this.texts.clear();
    for (const fn of texts) fn();
    let next = null;
    let waiting = false;
    let total = 0;
    for (const chart of this.charts.values()) {
      if (!chart.visible) continue;
      total += chart.cost;
      if (!chart.dirty) continue;
      waiting = true;
      if (chart.due <= now && (next === null || chart.due < next.due)) next = chart;
    }
    if (next && (!texts.length || now - next.due > PATIENCE_MS)) {
      const start = performance.now();
      next.dirty = false;
      next.draw();
      next.cost = 0.7 * next.cost + 0.3 * (performance.now() - start);
      next.due = now + Math.max(SHORTEST_MS, total / BUDGET);
    }
    if (waiting || this.texts.size) this.wake();
  }
}
