/* When things are drawn: text, tree and inspector in the next frame, charts one a frame, in frames without text, as
   often as they can afford. While lanes compute, a pace (drawing.js) says how seldom. Nothing is drawn out of sight. */

const SHARE = 0.1; // of the main thread, for a chart
const SHORTEST_MS = 200; // between two drawings of a chart
const PATIENCE_MS = 150; // how long a chart gives way to text

/** Drawings that are asked for; after them the next of their kind wait. */
class Batch {
  fns = new Set();
  due = 0;
  wait = 0;

  get next() {
    return this.fns.size && this.wait < Infinity ? this.due : Infinity;
  }

  run(now = 0) {
    this.due = now + this.wait;
    const all = [...this.fns];
    this.fns.clear();
    for (const fn of all) fn();
  }
}

export class Painter {
  asked = new Batch();
  texts = new Batch();
  heavy = new Batch();
  charts = new Map(); // by element
  scheduled = false;
  later = null;

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
    this.charts.set(node, { draw, dirty: false, visible: false, due: 0 });
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

  redraw() {
    for (const node of this.charts.keys()) this.dirty(node, true);
  }

  /** Keep to a pace while lanes compute; null: they are done. */
  computing(pace) {
    if (pace) this.catchUp();
    this.texts.wait = pace?.text ?? 0;
    this.heavy.wait = pace?.heavy ?? 0;
    for (const drawing of [...this.batches, ...this.charts.values()]) drawing.due = 0;
    this.requestFrame();
  }

  /** Draw all that waits, in view or not. */
  catchUp() {
    this.heavy.run();
    for (const chart of this.charts.values()) {
      if (chart.dirty) chart.draw();
      chart.dirty = false;
    }
  }

  /** In the next frame: the visitor asked for it. */
  now(fn) {
    this.add(this.asked, fn);
  }

  /** Text, once however often it is asked for. */
  soon(fn) {
    this.add(this.texts, fn);
  }

  affordably(fn) {
    this.add(this.heavy, fn);
  }

  /** What shows a round of the race: in the next frame where the visitor chose it. */
  followRound(race, draw) {
    race.on('reset round head end begin', () => this.affordably(draw));
    race.on('select focus', () => this.now(draw));
  }

  add(batch, fn) {
    batch.fns.add(fn);
    this.requestFrame();
  }

  get batches() {
    return [this.asked, this.texts, this.heavy];
  }

  requestFrame() {
    if (this.scheduled || document.hidden) return;
    this.scheduled = true;
    requestAnimationFrame(this.frame);
  }

  frame = (now) => {
    this.scheduled = false;
    const due = this.batches.filter(({ next }) => next <= now);
    for (const batch of due) batch.run(now);
    this.drawChart(now, due.length > 0);
    this.sleepUntilDue(now);
  };

  get waitingCharts() {
    if (this.heavy.wait === Infinity) return [];
    return [...this.charts.values()]
      .filter((chart) => chart.visible && chart.dirty)
      .sort((a, b) => a.due - b.due);
  }

  /** written: this frame has text already. */
  drawChart(now, written) {
    const [next] = this.waitingCharts;
    if (!next || next.due > now || (written && now - next.due < PATIENCE_MS)) return;
    const start = performance.now();
    next.dirty = false;
    next.draw();
    const cost = performance.now() - start;
    next.due = now + Math.max(SHORTEST_MS, cost / SHARE, this.heavy.wait);
  }

  sleepUntilDue(now) {
    const due = this.batches.map(({ next }) => next);
    const wait = Math.min(...due, this.waitingCharts[0]?.due ?? Infinity) - now;
    clearTimeout(this.later);
    if (wait <= 0) this.requestFrame();
    else if (wait < Infinity) this.later = setTimeout(() => this.requestFrame(), wait);
  }
}
