/* A Plotly chart under a title and our own legend. Its `ChartSpec` (types.d.ts) says what it draws. */

import { h, put, term } from './dom.js';
import { forPlotly } from '../records/text.js';
import { W } from '../words/words.js';

const CONFIG = { displayModeBar: false, doubleClick: false };

let loading = null;

/** The drawing library, which the first caller loads. @param {string} [url] */
export function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const load = () => resolve(window.Plotly);
    const error = () => reject(new Error(`could not load ${url}`));
    document.head.append(h('script', { src: url, load, error }));
  });
  return loading;
}

const palettes = {}; // by whether the theme is dark

/** @returns {Colours} */
function readColours(node) {
  const style = getComputedStyle(node);
  const colour = (name) => style.getPropertyValue(`--vl-${name}`).trim();
  const numbered = (name, n) => Array.from({ length: n }, (_, i) => colour(`${name}-${i}`));
  return {
    muted: colour('muted'),
    line: colour('line'),
    draft: colour('draft'),
    relaxed: colour('relaxed'),
    shade: colour('shade'),
    lanes: numbered('lane', 7),
    series: numbered('series', 6),
  };
}

export class Chart {
  /** @param {ChartSpec} spec */
  constructor(spec, race, painter) {
    this.spec = spec;
    this.race = race;
    this.painter = painter;
    this.legend = h('ul.vl-legend');
    this.note = h('p.vl-help.vl-chart-note');
    this.plot = h('div.vl-plot', { role: 'img', label: spec.title });
    this.node = h(
      'section.vl-card.vl-chart',
      { data: { chart: spec.id } },
      h('header', h('h2', { title: spec.help }, term(spec.title, spec.help))),
      this.legend,
      this.note,
      this.plot,
    );
    painter.register(this.node, () => this.draw());
    this.resized = new ResizeObserver(() => painter.dirty(this.node));
    this.resized.observe(this.plot);
  }

  update(now = false) {
    this.painter.dirty(this.node, now);
  }

  remove() {
    this.painter.forget(this.node);
    this.resized.disconnect();
    if (this.started) window.Plotly.purge(this.plot);
    this.node.remove();
  }

  draw() {
    if (!window.Plotly) {
      const missing = () => put(this.plot, W.charts.unreachable);
      plotly().then(() => this.update(true), missing);
      return;
    }
    this.colours = palettes[document.body.classList.contains('dark')] ??= readColours(this.node);
    const drawing = this.spec.build(this.race, this.colours) ?? {};
    const { traces, note, say } = drawing;
    this.node.classList.toggle('empty', !traces);
    put(this.note, note || '');
    this.writeLegend(drawing.legend ?? []);
    if (say) this.plot.ariaLabel = say;
    const { clientWidth: width, clientHeight: height } = this.plot;
    // In a view that is closed there is no width; once it opens, the observer asks again.
    if (!traces || !width) return;
    const layout = { ...this.layout(drawing), width, height };
    const literal = traces.map((trace) => ({ ...trace, name: forPlotly(trace.name) }));
    window.Plotly.react(this.plot, literal, layout, CONFIG);
    if (!this.started) {
      this.started = true;
      this.plot.on('plotly_click', (e) => this.spec.click?.(this.race, e.points[0]));
    }
  }

  /** While no end is known, axes grow in steps: most redraws leave them unchanged. @param {Drawing} drawing */
  layout({ xmin = 0, xmax, xend = null, ymax, ymin = 0, shapes = [] }) {
    const { muted: color, line: gridcolor } = this.colours;
    const { spec } = this;
    const axis = (text, more) => ({
      ...{ color, gridcolor, zeroline: false, fixedrange: true },
      title: { text: forPlotly(text), standoff: 8, font: { size: 12 } },
      ...more,
    });
    const few = spec.whole && (xend ?? xmax) < 6;
    return {
      margin: { l: 48, r: 10, t: 8, b: 38 },
      showlegend: false,
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      font: { family: 'inherit', size: 12, color },
      hovermode: this.race.finished ? 'x unified' : false,
      dragmode: false,
      shapes,
      xaxis: axis(spec.x, {
        range: [xmin, xend ?? ceilTo(xmax, spec.xunit ?? 10)],
        nticks: 5,
        ...(few && { tick0: 1, dtick: 1 }),
        showgrid: false,
      }),
      yaxis: axis(spec.y, { range: [ymin, ymax], nticks: 4 }),
    };
  }

  writeLegend(legend) {
    const entry = ({ name, colour, dash, fill, help }) =>
      h('li', { title: help }, colour && legendSign(colour, fill, dash), name);
    const written = h('ul.vl-legend', legend.map(entry));
    if (written.isEqualNode(this.legend)) return;
    this.legend.replaceWith(written);
    this.legend = written;
  }
}

const legendSign = (colour, fill, dash) =>
  /[●◆◇]/.test(dash ?? '')
    ? h('b', { style: { color: colour } }, dash)
    : h('i', { class: `${fill ? 'fill' : 'line'} ${dash ?? ''}`, style: { '--c': colour } });

export const ceilTo = (x, unit) => Math.max(unit, Math.ceil((x + 1e-9) / unit) * unit);
