/* When things are drawn: text, tree and inspector in the next frame, charts one a frame, in frames without text, as
   often as all can afford. While lanes compute, a pace (drawing.js) says how seldom. Nothing is drawn out of sight. */

const FREE = { text: 0, heavy: 0 };
const SHARE = 0.25; // of the main thread, for all charts
const SHORTEST_MS = 200; // between two drawings of a chart
const LONGEST_MS = 480;
const PATIENCE_MS = 150; // how long a chart gives way to text

export class Painter {
  asked = new Set();
  texts = { fns: new Set(), due: 0 };
  heavy = { fns: new Set(), due: 0 };
  charts = new Map(); // by element
  scheduled = false;
  later = null;
  pace = FREE;

  constructor() {
    const see = (entries) => {
      for (const { isIntersecting: visible, target } of entries)
        Object.assign(this.charts.get(target) ?? {}, { visible });
      this.requestFrame();
    };
    this.seen = new IntersectionObserver(see, { rootMargin: '120px' });
    document.addEventListener('visibilitychange', () => this.requestFrame());
  }

  /** `draw` is called when the chart is dirty, visible and due. */
  register(node, draw) {
    this.charts.set(node, { draw, dirty: false, visible: false, cost: 8, due: 0 });
    this.seen.observe(node);
  }

  forget(node) {
    this.charts.delete(node);
    this.seen.unobserve(node);
  }

  /** A chart has new data. now: the visitor asked for it. */
  dirty(node, now = false) {
    const chart = this.charts.get(node);
    if (!chart) return;
    chart.dirty = true;
    if (now) chart.due = 0;
    this.requestFrame();
  }

  /** The theme is another one. */
  redraw() {
    for (const node of this.charts.keys()) this.dirty(node, true);
  }

  /** Keep to a pace while lanes compute; null: they are done. */
  computing(pace) {
    if (pace) this.catchUp();
    this.pace = pace ?? FREE;
    for (const one of [this.texts, this.heavy, ...this.charts.values()]) one.due = 0;
    this.requestFrame();
  }

  catchUp() {
    callAll(this.heavy.fns);
    for (const chart of this.charts.values()) {
      if (chart.dirty) chart.draw();
      chart.dirty = false;
    }
  }

  /** In the next frame: the visitor asked for it. */
  now(fn) {
    this.asked.add(fn);
    this.requestFrame();
  }

  /** Text, once however often it is asked for. */
  soon(fn) {
    this.texts.fns.add(fn);
    this.requestFrame();
  }

  /** More than text. */
  affordably(fn) {
    this.heavy.fns.add(fn);
    this.requestFrame();
  }

  requestFrame() {
    if (this.scheduled || document.hidden) return;
    this.scheduled = true;
    requestAnimationFrame(this.frame);
  }

  frame = (now) => {
    this.scheduled = false;
    const written = [
      callAll(this.asked),
      this.runDue(this.texts, now, this.pace.text),
      this.runDue(this.heavy, now, this.pace.heavy),
    ].some(Boolean);
    this.drawChart(now, written);
    this.sleepUntilDue(now);
  };

  runDue(kind, now, wait) {
    if (!kind.fns.size || kind.due > now || wait === Infinity) return false;
    kind.due = now + wait;
    return callAll(kind.fns);
  }

  get waitingCharts() {
    if (this.pace.heavy === Infinity) return [];
    return [...this.charts.values()]
      .filter((chart) => chart.visible && chart.dirty)
      .sort((a, b) => a.due - b.due);
  }

  drawChart(now, written) {
    const [next] = this.waitingCharts;
    if (!next || next.due > now || (written && now - next.due < PATIENCE_MS)) return;
    const start = performance.now();
    next.dirty = false;
    next.draw();
    next.cost = 0.7 * next.cost + 0.3 * (performance.now() - start);
    const wait = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, this.cost / SHARE));
    next.due = now + Math.max(wait, this.pace.heavy);
  }

  sleepUntilDue(now) {
    const due = [
      this.asked.size ? 0 : Infinity,
      this.texts.fns.size && this.pace.text < Infinity ? this.texts.due : Infinity,
      this.heavy.fns.size && this.pace.heavy < Infinity ? this.heavy.due : Infinity,
      this.waitingCharts[0]?.due ?? Infinity,
    ];
    const wait = Math.min(...due) - now;
    clearTimeout(this.later);
    if (wait <= 0) this.requestFrame();
    else if (wait < Infinity) this.later = setTimeout(() => this.requestFrame(), wait);
  }

  /** Milliseconds to draw all charts in view once. */
  get cost() {
    const visible = [...this.charts.values()].filter((chart) => chart.visible);
    return visible.reduce((sum, { cost }) => sum + cost, 0);
  }
}

/** Returns whether there were any. */
function callAll(fns) {
  const all = [...fns];
  fns.clear();
  for (const fn of all) fn();
  return all.length > 0;
}
