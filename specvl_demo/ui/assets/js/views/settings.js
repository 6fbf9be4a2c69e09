/* Parameters as fields, made from declarations: {key, kind, default, paper, min, max, choices [[value, title]], title,
   help}. Only changed values are kept; a changed one stands out and can be put back. */

import { button, h, put, icon, iconButton } from './dom.js';
import { W } from '../words/words.js';

let serial = 0;

/** Fields for some parameters over an object of changed values. */
export class Fields {
  constructor(params, values, onchange) {
    this.params = params;
    this.values = values;
    this.onchange = onchange;
    this.fields = new Map();
    this.node = h(
      'div.vl-fields',
      params.map((param) => this.build(param)),
    );
    this.show();
  }

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

  differs({ key, default: standard }) {
    return key in this.values && !same(this.values[key], standard);
  }

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

/** A foldable panel whose heading counts the changes. */
export class Panel {
  constructor(title, onreset) {
    this.count = h('span.vl-changed');
    this.body = h('div.vl-settings-body');
    this.all = button(W.settings.resetAll, onreset);
    this.node = h(
      'details',
      h('summary', icon('chevron'), h('span', title), this.count),
      this.body,
    );
  }

  fill(...nodes) {
    this.body.replaceChildren(...nodes.filter(Boolean), this.all);
  }

  /** example: the one whose own the values are. */
  tally(changed, example) {
    tell(this.count, example ? 0 : changed, example ? [example] : []);
    this.all.hidden = changed === 0;
  }
}

/** Say how many values were changed, besides those of examples. */
export function tell(node, changed, examples) {
  const titles = new Set(examples.map(({ title }) => title));
  put(node, W.settings.changes(changed, [...titles]));
  node.classList.toggle('own', changed > 0);
}

const same = (a, b) => String(a) === String(b);

/** A value as its control shows it. */
const write = (param, value) =>
  typeof value === 'boolean'
    ? value
      ? W.settings.on
      : W.settings.off
    : (param.choices?.find(([choice]) => choice === value)?.[1] ?? String(value));

/** An input for one kind of value; its `show` writes a value into it. */
function control(param, id, onset) {
  if (param.kind === 'bool') {
    const box = h('input', { type: 'checkbox', id, on: { change: () => onset(box.checked) } });
    box.show = (value) => {
      box.checked = Boolean(value);
    };
    return box;
  }
  if (param.choices?.length && param.kind === 'choice') {
    const options = param.choices.map(([value, text]) => h('option', { value, text }));
    const menu = h('select', { id, on: { change: () => onset(menu.value) } }, options);
    menu.show = (value) => {
      menu.value = value;
    };
    return menu;
  }
  if (param.kind === 'set') return several(param, id, onset);
  const text = param.auto || param.kind === 'choice';
  const number = h('input', {
    type: text ? 'text' : 'number',
    id,
    min: param.min,
    max: param.max,
    inputmode: text ? 'text' : 'decimal',
    step: param.kind === 'int' ? 1 : 'any',
    on: { change: () => onset(within(param, number.value)) },
  });
  number.show = (value) => {
    if (document.activeElement !== number || !same(number.value, value))
      number.value = String(value);
  };
  return number;
}

/** Several of the choices at once, joined into one value; at least one stays. */
function several(param, id, onset) {
  const change = () => {
    const on = boxes.filter(([box]) => box.checked).map(([box]) => box.value);
    onset(on.length ? on.join(param.joined) : param.default);
  };
  const boxes = param.choices.map(([value, title]) => [
    h('input', { type: 'checkbox', value, on: { change } }),
    title,
  ]);
  const group = h(
    'div.vl-several',
    { role: 'group', id, 'aria-label': param.title },
    boxes.map(([box, title]) => h('label', box, title)),
  );
  group.show = (value) => {
    const on = new Set(String(value).split(param.joined));
    for (const [box] of boxes) box.checked = on.has(box.value);
  };
  return group;
}

/** A number within the declared bounds, or "auto" where it is allowed; anything invalid becomes the default. Text
    without choices is any. */
function within(param, text) {
  if (param.kind === 'choice') return text;
  if (param.auto && text.trim() === 'auto') return 'auto';
  let x = text.trim() === '' ? NaN : Number(text);
  if (!Number.isFinite(x)) return param.default;
  if (param.kind === 'int') x = Math.round(x);
  return Math.min(param.max ?? Infinity, Math.max(param.min ?? -Infinity, x));
}

/** A label, a control, a line of help. */
export function field(id, title, input, help, extra = null) {
  const hint = help ? h('p.vl-help', { id: `${id}-help`, text: help }) : null;
  if (hint) input.setAttribute('aria-describedby', hint.id);
  return h(
    'div.vl-field.vl-param',
    h('div.vl-param-line', h('label', { for: id, text: title }), extra, input),
    hint,
  );
}
