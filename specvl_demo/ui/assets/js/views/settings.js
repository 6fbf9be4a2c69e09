/* Parameters as fields, made from declarations: {key, kind, default, paper, min, max, choices [[value, title]], title,
   help}. Only changed values are kept; a changed one stands out and can be put back. */

import { button, folded, h, iconButton, options, put } from './dom.js';
import { W } from '../words/words.js';

let serial = 0;

/** Fields over an object of changed values. */
export class Fields {
  constructor(params, values, onchange) {
    this.params = params;
    this.values = values;
    this.onchange = onchange;
    this.fields = new Map();
    const fields = params.map((param) => this.build(param));
    this.node = h('div.vl-fields', fields);
    this.show();
  }

  /** A parameter's field, with its help and the button that puts it back. */
  build(param) {
    const id = `vl-p${(serial += 1)}`;
    const input = control(param, id, (value) => this.set(param, value));
    const back = () => this.set(param, param.default);
    const reset = iconButton('reset', W.settings.reset(param.title), back, 'vl-reset', 13);
    reset.title = W.settings.resetTo(write(param, param.default));
    const paper = (param.paper ?? null) !== null && W.settings.paper(write(param, param.paper));
    const help = [param.help, paper].filter(Boolean).map((text) => text.replace(/\.?$/, '.'));
    const node = field(id, param.title, input, help.join(' '), reset);
    node.classList.toggle('wide', param.kind === 'set');
    this.fields.set(param.key, { node, input, reset });
    return node;
  }

  /** Change a value; the standard one is not kept. */
  set(param, value) {
    if (same(value, param.default)) delete this.values[param.key];
    else this.values[param.key] = value;
    this.show();
    this.onchange(param.key);
  }

  /** How many values differ from their standard. */
  get changed() {
    return this.params.filter((p) => this.differs(p)).length;
  }

  /** Whether a value differs from its standard. */
  differs({ key, default: standard }) {
    return key in this.values && !same(this.values[key], standard);
  }

  /** Write the values into their controls. */
  show() {
    for (const param of this.params) {
      const { node, input, reset } = this.fields.get(param.key);
      input.show(this.values[param.key] ?? param.default);
      const differs = this.differs(param);
      node.classList.toggle('changed', differs);
      reset.hidden = !differs;
    }
  }
}

/** A folded panel that says how many of its values were changed. */
export class Panel {
  constructor(title, onreset) {
    this.count = h('span.vl-changed');
    this.body = h('div.vl-settings-body');
    this.all = button(W.settings.resetAll, onreset);
    this.node = folded('details', [h('span', title), this.count], this.body);
  }

  /** Replace its contents. */
  fill(...nodes) {
    this.body.replaceChildren(...nodes.filter(Boolean), this.all);
  }

  /** Say how many values were changed. example: the one whose own the values are. */
  tally(changed, example) {
    tally(this.count, example ? 0 : changed, example ? [example] : []);
    this.all.hidden = changed === 0;
  }
}

/** Say how many values were changed, besides those of examples. */
export function tally(node, changed, examples) {
  const titles = new Set(examples.map(({ title }) => title));
  put(node, W.settings.changes(changed, [...titles]));
  node.classList.toggle('own', changed > 0);
}

const same = (a, b) => String(a) === String(b);

/** A value as its control shows it. */
function write({ choices }, value) {
  if (typeof value === 'boolean') return value ? W.settings.on : W.settings.off;
  return choices?.find(([choice]) => choice === value)?.[1] ?? String(value);
}

/** A parameter's control; its `show` writes a value into it. */
function control(param, id, onset) {
  if (param.kind === 'bool') {
    const box = h('input', { type: 'checkbox', id, on: { change: () => onset(box.checked) } });
    return Object.assign(box, { show: (value) => (box.checked = Boolean(value)) });
  }
  if (param.kind === 'set') return several(param, id, onset);
  if (param.choices?.length) {
    /** Hand on what was chosen. */
    const change = () => onset(menu.value);
    const menu = h('select', { id, on: { change } }, options(param.choices));
    return Object.assign(menu, { show: (value) => (menu.value = value) });
  }
  const { min, max, kind } = param;
  const text = param.auto || kind === 'choice';
  const [type, inputmode] = text ? ['text', 'text'] : ['number', 'decimal'];
  const step = kind === 'int' ? 1 : 'any';
  /** Hand on what was typed. */
  const change = () => onset(within(param, number.value));
  const number = h('input', { type, id, min, max, inputmode, step, on: { change } });
  /** Write a value into the field, unless the visitor is typing it. */
  const show = (value) => {
    if (document.activeElement !== number || !same(number.value, value))
      number.value = String(value);
  };
  return Object.assign(number, { show });
}

/** Checkboxes whose values are joined into one; at least one stays. */
function several(param, id, onset) {
  /** Hand on the ticked values as one. */
  const change = () => {
    const on = boxes.filter((one) => one.checked).map((one) => one.value);
    onset(on.length ? on.join(param.joined) : param.default);
  };
  const box = (value) => h('input', { type: 'checkbox', value, on: { change } });
  const boxes = param.choices.map(([value]) => box(value));
  const labels = param.choices.map(([, title], i) => h('label', boxes[i], title));
  /** Tick what a value names. */
  const show = (value) => {
    const on = String(value).split(param.joined);
    for (const one of boxes) one.checked = on.includes(one.value);
  };
  const props = { role: 'group', id, 'aria-label': param.title };
  return Object.assign(h('div.vl-several', props, labels), { show });
}

/** What was typed as a value within bounds, or "auto" where it is allowed; anything invalid becomes
 *  the default. Text without choices is any. */
function within(param, text) {
  if (param.kind === 'choice') return text;
  if (param.auto && text.trim() === 'auto') return 'auto';
  let x = text.trim() === '' ? NaN : Number(text);
  if (!Number.isFinite(x)) return param.default;
  if (param.kind === 'int') x = Math.round(x);
  return Math.min(param.max ?? Infinity, Math.max(param.min ?? -Infinity, x));
}

/** An input with its label and help. */
export function field(id, title, input, help, extra = null) {
  const hint = help && h('p.vl-help', { id: `${id}-help`, text: help });
  if (hint) input.setAttribute('aria-describedby', hint.id);
  const line = h('div.vl-param-line', h('label', { for: id, text: title }), extra, input);
  return h('div.vl-field.vl-param', line, hint);
}
