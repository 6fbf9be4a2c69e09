/* Parameters (`Param`) as fields. Only changed values are kept; they stand out and can be put back. */

import { button, checkbox, folded, h, iconButton, options, put, refill } from './dom.js';
import { W } from '../words/words.js';

let serial = 0;

/** values: the changed ones. @param {Param[]} params */
export const fieldsOf = (params, values, onchange) =>
  h('div.vl-fields', ...params.map((param) => parameterField(param, values, onchange)));

function parameterField(param, values, onchange) {
  const { key, title, default: standard, paper = null } = param;
  const id = `vl-p${(serial += 1)}`;
  const set = (value) => {
    if (same(value, standard)) delete values[key];
    else values[key] = value;
    show();
    onchange();
  };
  const input = control(param, id, set);
  const reset = iconButton('reset', W.settings.reset(title), () => set(standard), 'vl-reset');
  reset.title = W.settings.resetTo(inWords(param, standard));
  const help = [param.help, paper !== null && W.settings.paper(inWords(param, paper))]
    .filter(Boolean)
    .map((text) => text.replace(/\.?$/, '.'));
  const node = field(id, title, input, help.join(' '), reset);
  const show = () => {
    const value = values[key] ?? standard;
    input.show(value);
    reset.hidden = same(value, standard);
    node.classList.toggle('changed', !reset.hidden);
  };
  show();
  return node;
}

/** Fields below a count of changes; `fill` puts them in. */
export function panelOf(title, onreset) {
  const count = h('span.vl-changed');
  const body = h('div.vl-settings-body');
  const all = button(W.settings.resetAll, onreset);
  return {
    node: folded('details', [h('span', title), count], body),
    fill: (...nodes) => refill(body, [...nodes, all]),
    /** Count the changed values. example: the one whose own they are. */
    tally(values, example) {
      const { length } = Object.keys(values);
      tally(count, example ? 0 : length, example ? [example] : []);
      all.hidden = length === 0;
    },
  };
}

/** changed: besides those of examples. */
export function tally(node, changed, examples) {
  const titles = new Set(examples.map(({ title }) => title));
  put(node, W.settings.changes(changed, [...titles]));
  node.classList.toggle('own', changed > 0);
}

export function forget(values) {
  for (const key of Object.keys(values)) delete values[key];
}

const same = (a, b) => String(a) === String(b);

function inWords({ choices }, value) {
  if (typeof value === 'boolean') return value ? W.settings.on : W.settings.off;
  return choices?.find(([choice]) => choice === value)?.[1] ?? String(value);
}

/** Its `show` writes a value into it. */
function control(param, id, onset) {
  if (param.kind === 'bool') {
    const box = checkbox(onset, { id });
    return Object.assign(box, { show: (value) => (box.checked = Boolean(value)) });
  }
  if (param.kind === 'set') return checkboxes(param, id, onset);
  if (param.choices?.length) {
    const menu = h('select', { id, change: () => onset(menu.value) }, options(param.choices));
    return Object.assign(menu, { show: (value) => (menu.value = value) });
  }
  const { min, max, kind, auto } = param;
  const [type, inputmode] = auto || kind === 'choice' ? ['text', 'text'] : ['number', 'decimal'];
  const step = kind === 'int' ? 1 : 'any';
  const change = () => onset(typedValue(param, input.value));
  const input = h('input', { type, id, min, max, inputmode, step, change });
  const show = (value) => {
    const typing = document.activeElement === input && same(input.value, value);
    if (!typing) input.value = String(value);
  };
  return Object.assign(input, { show });
}

/** At least one stays. */
function checkboxes({ choices, joined, title, default: standard }, id, onset) {
  const change = () => {
    const on = boxes.filter((box) => box.checked).map((box) => box.value);
    onset(on.length ? on.join(joined) : standard);
  };
  const boxes = choices.map(([value]) => checkbox(change, { value }));
  const labels = choices.map(([, text], i) => h('label', boxes[i], text));
  const show = (value) => {
    const on = String(value).split(joined);
    for (const box of boxes) box.checked = on.includes(box.value);
  };
  const group = { role: 'group', id, label: title };
  return Object.assign(h('div.vl-several', group, labels), { show });
}

/** Within the bounds; what is no number becomes the default. */
function typedValue({ kind, auto, min, max, default: standard }, text) {
  const typed = text.trim();
  if (kind === 'choice') return text;
  if (auto && typed === 'auto') return typed;
  const x = typed === '' ? NaN : Number(typed);
  if (!Number.isFinite(x)) return standard;
  const value = kind === 'int' ? Math.round(x) : x;
  return Math.min(max ?? Infinity, Math.max(min ?? -Infinity, value));
}

export function field(id, title, input, help, extra = null) {
  const hint = help && h('p.vl-help', { id: `${id}-help` }, help);
  if (hint) input.setAttribute('aria-describedby', hint.id);
  const line = h('div.vl-param-line', h('label', { for: id }, title), extra, input);
  return h('div.vl-field.vl-param', line, hint);
}
