/* When things are drawn. Text goes on screen in the next frame; charts wait for frames without text, at most one a
   frame, the one that waits longest, and each chart's rate adapts so that all of them together take their share of the main
   thread at most. While a race streams in they are drawn twice a second and no more: the engine may compute on the same
   machine, and a chart costs a hundred times what a word does. Charts off screen are not drawn until they come into view. */

const PACE = { share: 0.25, shortest: 200, longest: 480 };
const STREAMING = { share: 0.08, shortest: 460, longest: 480 };
const PATIENCE_MS = 150; // so long a chart gives way to text

export class Painter {
  constructor() {
    this.texts = new Set();
    this.charts = new Map();
    this.scheduled = false;
    this.later = null;
    this.pace = PACE;
    this.frame = this.frame.bind(this);
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) this.entry(entry.target).visible = entry.isIntersecting;
        this.wake();
      },
      { rootMargin: '120px' },
    );
  }

  entry(node) {
    return this.charts.get(node) ?? {};
  }

  /** A chart: `draw` is called when the chart is dirty, visible and due. */
  register(node, draw) {
    this.charts.set(node, { draw, dirty: false, visible: false, cost: 8, due: 0 });
    this.seen.observe(node);
  }

  forget(node) {
    this.charts.delete(node);
    this.seen.unobserve(node);
  }

  /** This chart has new data; `now` skips its waiting time, since the visitor requested it. */
  dirty(node, now = false) {
    const chart = this.charts.get(node);
    if (!chart) return;
    chart.dirty = true;
    if (now) chart.due = 0;
    this.wake();
  }

  /** A race starts or stops streaming; charts still waiting at its end are drawn at once. */
  streaming(on) {
    this.pace = on ? STREAMING : PACE;
    if (!on) for (const chart of this.charts.values()) chart.due = 0;
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

  /** Nothing is drawn before that: until then no frame is requested. */
  sleep(ms) {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.wake(), ms);
  }

  frame(now) {
    this.scheduled = false;
    const texts = [...this.texts];
    this.texts.clear();
    for (const fn of texts) fn();
    const waiting = [...this.charts.values()]
      .filter((chart) => chart.visible && chart.dirty)
      .sort((a, b) => a.due - b.due);
    const [next] = waiting;
    if (next && next.due <= now && (!texts.length || now - next.due > PATIENCE_MS)) {
      const start = performance.now();
      next.dirty = false;
      next.draw();
      next.cost = 0.7 * next.cost + 0.3 * (performance.now() - start);
      next.due =
        now +
        Math.min(this.pace.longest, Math.max(this.pace.shortest, this.cost / this.pace.share));
      waiting.shift();
    }
    if (this.texts.size) this.wake();
    else if (waiting.length) this.sleep(waiting[0].due - now);
  }

  /** Milliseconds that all charts in view take to be drawn once. */
  get cost() {
    return [...this.charts.values()].reduce(
      (sum, chart) => sum + (chart.visible ? chart.cost : 0),
      0,
    );
  }
}
