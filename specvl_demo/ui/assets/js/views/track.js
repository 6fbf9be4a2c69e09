/* One row a lane: its bar, full where it is done, and the numbers that decide a race. */

import { h, put, tableRow, term } from './dom.js';
import { PHASES } from '../records/fold.js';
import { disturbed, doubt, early, hedged, timed } from '../records/verdict.js';
import { W, fmt } from '../words/words.js';

const COLUMNS = ['speedup', 'speed', 'tau', 'clock', 'where'];

export function track(race, painter) {
  const rows = new Map(); // by the lane's name
  const body = h('tbody');
  const column = (c) => {
    const help = W.track[`${c}Help`];
    return h('th', { scope: 'col', class: c, title: help }, term(W.track[c], help));
  };
  const head = h('thead', h('tr', ['lane', 'bar', ...COLUMNS].map(column)));
  const caption = h('caption.vl-help');
  const node = h('table.vl-track', caption, head, body);
  const draw = () => {
    const reasons = race.list.map((lane) => doubt(race, lane) ?? early(race, lane));
    const rough = disturbed(race);
    node.classList.toggle('disturbed', rough !== null);
    // Beside lanes without a speedup the plain one, 1 by definition, would mean nothing.
    const told = race.list.some(({ plain }, i) => !plain && timed(reasons[i]));
    race.list.forEach((lane, i) => {
      const row = rows.get(lane.name);
      drawProgress(race, lane, row);
      drawNumbers(race, lane, row, told, reasons[i], rough);
    });
  };
  race.on('reset', () => {
    put(caption, W.track[race.meta.example ? 'chosen' : 'caption']);
    rows.clear();
    body.replaceChildren();
  });
  race.on('lane', ({ lane }) => {
    const made = rowOf(race, lane);
    rows.set(lane.name, made);
    body.append(made.row);
  });
  race.on('lane begin round end head load compared', () => painter.soon(draw));
  race.on('focus', () => painter.now(draw));
  return node;
}

function rowOf(race, lane) {
  const fill = h('i');
  const shares = PHASES.map((p) => h('i', { class: p.slice(0, -2), title: '' }));
  const cells = Object.fromEntries(COLUMNS.map((c) => [c, h('td', { class: c })]));
  cells.where.append(h('span.vl-shares', shares));
  const progress = { role: 'progressbar', label: W.track.tokensOf(lane.title) };
  const bar = h('div.vl-bar', { ...progress, 'aria-valuemin': 0 }, fill);
  const count = h('span.vl-count');
  const name = h('span', lane.title);
  const focus = { label: W.lane.focus(lane.title), click: () => race.setFocus(lane.name) };
  const parts = [h('i.vl-swatch'), name];
  const named = lane.plain ? h('span.vl-lane-name', parts) : h('button.vl-lane-name', focus, parts);
  const tokens = h('td.bar', h('div.vl-barline', bar, count));
  const all = [tokens, ...Object.values(cells)];
  const row = tableRow(named, all, { data: { lane: lane.number } });
  return { row, name, fill, bar, count, shares, cells };
}

function drawProgress(race, lane, { row, name, fill, bar, count, shares }) {
  const t = race.now(lane);
  put(name, lane.title);
  row.dataset.colour = lane.colour;
  row.classList.toggle('focused', race.focus === lane.name);
  const most = lane.complete ? lane.tokens.length : lane.begin.max_new_tokens;
  fill.style.transform = `scaleX(${Math.min(1, t.n_tokens / Math.max(1, most))})`;
  bar.ariaValueNow = t.n_tokens;
  bar.ariaValueMax = most;
  put(count, String(t.n_tokens));
  PHASES.forEach((phase, i) => {
    const share = t.clock_s > 0 ? t[phase] / t.clock_s : 0;
    shares[i].style.flexGrow = share.toFixed(4);
    shares[i].title = `${W.phases[phase]} ${fmt.percent(share)}`;
  });
}

/** Where a number is missing, the tooltip says why. */
function drawNumbers(race, lane, { row, cells }, told, why, unsound) {
  const t = race.now(lane);
  const x = lane === race.baseline ? told && t.tokens_per_s && 1 : race.speedup(lane);
  const rough = race.finished && hedged(why);
  put(cells.speedup, rough ? W.track.about(rough) : fmt.times(why ? null : x));
  const total = !why && race.finished && race.meta.compared?.lanes[lane.name].speedup_total;
  if (total) cells.speedup.append(h('small', W.track.total(total.toFixed(2))));
  const again = lane.end?.again?.length ? W.track.timed(lane.timings.map(fmt.seconds)) : '';
  const read = total && W.track.totalHelp(fmt.seconds(lane.before));
  const doubted = why && (rough ? why.sentence : W.charts.noSpeedup({ sentence: why.sentence }));
  cells.speedup.title = doubted ?? [again, read].filter(Boolean).join('. ');
  put(cells.speed, fmt.speed(t.tokens_per_s));
  put(cells.tau, fmt.number(t.tau));
  put(cells.clock, fmt.seconds(t.clock_s || null));
  // Times that other programs stretched cannot be compared by hand either.
  cells.speed.title = cells.clock.title =
    (why?.kind === unsound?.kind ? why : unsound)?.sentence ?? again;
  row.classList.toggle('unsound', why !== null);
}
