/* Combinations of parts that a visitor saved under a name, kept by this browser. */

import { h, icon } from './dom.js';
import { store, stored } from './keep.js';
import { W } from './words.js';

const KEY = 'specvl-combinations';
const MOST = 20;

function load() {
  const kept = stored(KEY);
  return Array.isArray(kept)
    ? kept.filter((c) => typeof c?.name === 'string' && c.values && typeof c.values === 'object')
    : [];
}

export class Combos {
  /** values(): the settings as they are now. ontake(values): take a saved combination. onlink(): share what is set. */
  constructor(values, ontake, onlink) {
    Object.assign(this, { values, ontake });
    this.name = h('input', {
      type: 'text',
      maxlength: 40,
      placeholder: W.combos.name,
      'aria-label': W.combos.name,
    });
    this.list = h('ul', { class: 'vl-combos' });
    this.node = h(
      'div',
      { class: 'vl-field' },
      this.list,
      h(
        'div',
        { class: 'vl-combo-line' },
        this.name,
        h('button', {
          type: 'button',
          class: 'vl-small',
          text: W.combos.save,
          on: { click: () => this.save() },
        }),
        h('button', {
          type: 'button',
          class: 'vl-small',
          text: W.combos.share,
          on: { click: onlink },
        }),
      ),
    );
    this.show();
  }

  save() {
    const name = this.name.value.trim();
    if (!name) {
      this.name.focus();
      return;
    }
    this.write(
      [...load().filter((c) => c.name !== name), { name, values: { ...this.values() } }].slice(
        -MOST,
      ),
    );
    this.name.value = '';
  }

  write(combos) {
    if (!store(KEY, combos)) {
      this.list.replaceChildren(
        h('li', { class: 'vl-help wrong', role: 'status', text: W.combos.full }),
      );
      return;
    }
    this.show();
  }

  show() {
    this.list.replaceChildren(
      ...load().map(({ name, values }) =>
        h(
          'li',
          {},
          h('button', {
            type: 'button',
            class: 'vl-small',
            text: name,
            on: { click: () => this.ontake({ ...values }) },
          }),
          h(
            'button',
            {
              type: 'button',
              class: 'vl-reset',
              'aria-label': W.combos.forget(name),
              on: { click: () => this.write(load().filter((c) => c.name !== name)) },
            },
            icon('close', 11),
          ),
        ),
      ),
    );
  }
}
