/* Parameters as a panel of fields, made from declarations: {key, kind, default, min, max, step, choices, title, help}.
   A changed value stands out and can be put back; the panel's heading counts the changes. */

import { h, put, icon } from './dom.js';
import { W } from './words.js';

let serial = 0;

export class Settings {
  /** values: the object that holds the changed values. preset: defaults of this pair that differ from the declared. */
  constructor(title, params, values, onchange, preset = {}) {
    Object.assign(this, { params, values, onchange, preset });
    this.count = h('span', { class: 'vl-changed' });
    this.fields = new Map();
    this.body = h('div', { class: 'vl-settings-body' });
    this.node = h('details', {}, h('summary', {}, icon('chevron'), h('span', { text: title }), this.count), this.body);
    for (const param of params) this.body.append(this.field(param));
    this.body.append(h('button', { type: 'button', class: 'vl-small', text: W.settings.resetAll, on: { click: () => this.resetAll() } }));
    this.show();
  }

  standard(param) { return this.preset[param.key] ?? param.default; }

  field(param) {
    const id = `vl-p${serial += 1}`;
    const input = control(param, id, (value) => this.set(param, value));
    const reset = h('button', { type: 'button', class: 'vl-reset', 'aria-label': W.settings.reset(param.title ?? param.key),
      title: W.settings.resetTo(write(this.standard(param))), on: { click: () => { this.set(param, this.standard(param)); input.focus(); } } }, icon('reset', 13));
    const node = field(id, param.title ?? param.key, input, param.help, reset);
    this.fields.set(param.key, { node, input, reset });
    return node;
  }

  value(param) { return this.values[param.key] ?? this.standard(param); }

  set(param, value) {
    this.values[param.key] = value;
    this.show();
    this.onchange();
  }

  resetAll() {
    for (const param of this.params) this.values[param.key] = this.standard(param);
    this.show();
    this.onchange();
  }

  show() {
    let changed = 0;
    for (const param of this.params) {
      const { node, input, reset } = this.fields.get(param.key);
      const value = this.value(param);
      if (param.kind === 'bool') input.checked = Boolean(value);
      else if (document.activeElement !== input || Number(input.value) !== Number(value)) input.value = String(value);
      const differs = String(value) !== String(this.standard(param));
      node.classList.toggle('changed', differs);
      reset.hidden = !differs;
      changed += differs;
    }
    put(this.count, changed ? W.settings.changed(changed) : '');
  }
}

function control(param, id, onset) {
  if (param.kind === 'bool') {
    const box = h('input', { type: 'checkbox', id, on: { change: () => onset(box.checked) } });
    return box;
  }
  if (param.kind === 'choice') {
    const menu = h('select', { id, on: { change: () => onset(menu.value) } },
      param.choices.map((c) => h('option', { value: c, text: String(c) })));
    return menu;
  }
  if (param.kind === 'text') {
    const line = h('input', { type: 'text', id, on: { change: () => onset(line.value) } });
    return line;
  }
  const number = h('input', { type: 'number', id, min: param.min, max: param.max, inputmode: 'decimal',
    step: param.kind === 'int' ? 1 : param.step ?? 'any', on: { change: () => onset(clamp(param, number.value)) } });
  return number;
}

/** A number within the declared bounds; nonsense becomes the default. */
function clamp(param, text) {
  let x = text.trim() === '' ? NaN : Number(text);
  if (!Number.isFinite(x)) return param.default;
  if (param.kind === 'int') x = Math.round(x);
  return Math.min(param.max ?? Infinity, Math.max(param.min ?? -Infinity, x));
}

const write = (value) => (typeof value === 'boolean' ? (value ? W.settings.on : W.settings.off) : String(value));

/** A label, a control, a line of help. */
export function field(id, title, input, help, extra = null) {
  const hint = help ? h('p', { class: 'vl-help', id: `${id}-help`, text: help }) : null;
  if (hint) input.setAttribute('aria-describedby', hint.id);
  return h('div', { class: 'vl-field vl-param' }, h('div', { class: 'vl-param-line' }, h('label', { for: id, text: title }), extra, input), hint);
}
