/* One Plotly chart: a card with a title, the page's own legend and a plot that redraws cheaply. A spec
   (see charts.js) says what it draws. */

import { h, put } from './dom.js';
import { term } from './explain.js';
import { forPlotly } from '../records/text.js';
import { W } from '../words/words.js';

let loading = null;

/** Plotly, fetched from our own server, once. */
export function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const load = () => resolve(window.Plotly);
    const error = () => reject(new Error(`could not load ${url}`));
    document.head.append(h('script', { src: url, on: { load, error } }));
  });
  return loading;
}

/** The colours of the dark theme (true) and the light one, once they were read. */
const palettes = {};

/** The theme's colours, read where a chart stands. */
function palette(node) {
  const style = getComputedStyle(node);
  /** A colour of the theme. */
  const of = (name) => style.getPropertyValue(`--vl-${name}`).trim();
  /** The `n` colours of the theme that are numbered under this name. */
  const some = (name, n) => Array.from({ length: n }, (_, i) => of(`${name}-${i}`));
  const named = ['muted', 'line', 'draft', 'relaxed', 'shade'].map((name) => [name, of(name)]);
  return { ...Object.fromEntries(named), lanes: some('lane', 7), series: some('series', 6) };
}

const CONFIG = { displayModeBar: false, doubleClick: false };

/** A chart that draws what its spec builds. */
export class Chart {
  /** spec: {id, title, help; told: whether it is explained elsewhere; x, y, right: names of the axes;
   *  whole: x are whole numbers; xunit: the steps in which the x axis grows; click(race, point): what
   *  a click on a point does; build(race, colours)}. build returns {traces, shapes: as Plotly takes
   *  them; legend: [{name, colour, dash, fill, help}]; note, say: a sentence below, and one for screen
   *  readers; xmin, xmax, xend: where x ends for good; ymin, ymax, rightRange: [low, high]}, {note}
   *  where there is nothing to draw yet, or null. */
  constructor(spec, race, painter, url) {
    this.spec = spec;
    this.race = race;
    this.painter = painter;
    this.url = url;
    this.legend = h('ul.vl-legend');
    this.plot = h('div.vl-plot', { role: 'img', 'aria-label': spec.title });
    this.node = h(
      'section.vl-card.vl-chart',
      { data: { chart: spec.id } },
      h('header', h('h2', { title: spec.help }, term(spec.title, spec.told ? '' : spec.help))),
      this.legend,
      (this.note = h('p.vl-help.vl-chart-note')),
      this.plot,
    );
    this.revision = 0;
    painter.register(this.node, () => this.draw());
    this.resized = new ResizeObserver(() => painter.dirty(this.node));
    this.resized.observe(this.plot);
  }

  /** Have it drawn, at once if the visitor asked for it. */
  update(now = false) {
    this.painter.dirty(this.node, now);
  }

  /** Take it off the page for good. */
  remove() {
    this.painter.forget(this.node);
    this.resized.disconnect();
    if (this.started) window.Plotly.purge(this.plot);
    this.node.remove();
  }

  /** Draw what the spec builds, once the library is loaded. */
  draw() {
    if (!window.Plotly) {
      const missing = () => put(this.plot, W.charts.unreachable);
      plotly(this.url).then(() => this.update(true), missing);
      return;
    }
    this.colours = palettes[document.body.classList.contains('dark')] ??= palette(this.node);
    const built = this.spec.build(this.race, this.colours);
    const empty = !built?.traces;
    this.node.classList.toggle('empty', empty);
    put(this.note, built?.note || '');
    this.write(built ?? {});
    if (empty) return;
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width) return;
    const layout = { ...this.frame(built), width, height, datarevision: (this.revision += 1) };
    window.Plotly.react(this.plot, built.traces.map(literal), layout, CONFIG);
    if (!this.started) {
      this.started = true;
      this.plot.on('plotly_click', (e) => this.spec.click?.(this.race, e.points[0]));
    }
  }

  /** The layout around the traces: axes up to `xend` if the end is known, else growing in steps, so
   *  that most redraws leave them unchanged. */
  frame({ xmin = 0, xmax, xend = null, ymax, ymin = 0, rightRange = null, shapes = [] }) {
    const c = this.colours;
    const axis = {
      color: c.muted,
      gridcolor: c.line,
      zeroline: false,
      fixedrange: true,
    };
    const name = (text) => ({ text: forPlotly(text), standoff: 8, font: { size: 12 } });
    return {
      margin: { l: 48, r: rightRange ? 42 : 10, t: 8, b: 38 },
      showlegend: false,
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      font: { family: 'inherit', size: 12, color: c.muted },
      hovermode: this.race.finished ? 'x unified' : false,
      dragmode: false,
      shapes,
      hoverlabel: { font: { size: 12 } },
      xaxis: {
        ...axis,
        range: [xmin, xend ?? ceilTo(xmax, this.spec.xunit ?? 10)],
        nticks: 5,
        ...(this.spec.whole && (xend ?? xmax) < 6 && { tick0: 1, dtick: 1 }),
        showgrid: false,
        title: name(this.spec.x),
      },
      yaxis: { ...axis, range: [ymin, ymax], nticks: 4, title: name(this.spec.y) },
      ...(rightRange && {
        yaxis2: {
          ...axis,
          range: rightRange,
          tickmode: 'auto', // not at the heights of the left axis's
          nticks: 4,
          ...(rightRange[1] > 1 && { tick0: 0, dtick: Math.ceil(rightRange[1] / 4) }),
          overlaying: 'y',
          side: 'right',
          showgrid: false,
          title: name(this.spec.right),
        },
      }),
    };
  }

  /** Write the legend, and the sentence for screen readers. */
  write({ legend = [], say }) {
    const key = JSON.stringify(legend);
    const line = ({ name, colour, dash, fill, help }) =>
      h('li', { title: help }, colour && mark(colour, fill, dash), name);
    if (key !== this.legendKey) this.legend.replaceChildren(...legend.map(line));
    this.legendKey = key;
    if (say) this.plot.setAttribute('aria-label', say);
  }
}

/** The sign of a line, an area or a point in the legend. */
const mark = (colour, fill, dash) =>
  /[●◆◇]/.test(dash ?? '')
    ? h('b', { style: { color: colour }, text: dash })
    : h('i', { class: `${fill ? 'fill' : 'line'} ${dash ?? ''}`, style: { '--c': colour } });

/** A trace whose words Plotly shows unchanged. */
function literal(trace) {
  const { name, text } = trace;
  const words = Array.isArray(text) ? text.map(forPlotly) : forPlotly(text);
  return { ...trace, name: forPlotly(name), ...(text && { text: words }) };
}

/** A number rounded up to a multiple of `unit`, so that axes do not move with every point. */
export function ceilTo(x, unit) {
  return Math.max(unit, Math.ceil((x + 1e-9) / unit) * unit);
}
