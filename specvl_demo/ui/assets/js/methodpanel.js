/* The settings of one method: its preset, its parts, their parameters. Which parameters there are depends on the parts,
   so the server is asked when a part changes; parts that do not fit together are explained. */

import { Combos } from './combos.js';
import { h, put } from './dom.js';
import { Fields, Panel } from './settings.js';
import { W } from './words.js';

const PRESET = 'preset';

export class MethodPanel {
  /** values: the changed settings of this method, kept by the request. ask(asked): the server's answer. */
  constructor(method, pair, values, ask, onchange) {
    Object.assign(this, { method, pair, values, ask, onchange });
    this.panel = new Panel(W.ask.settingsOf(method.title), () => this.reset());
    this.node = this.panel.node;
    this.problem = h('p', { class: 'vl-help wrong', role: 'status' });
    this.combos = new Combos(() => this.values, (kept) => this.take(kept));
    this.load();
  }

  async load() {
    const told = await this.ask({ pair: this.pair, method: this.method.name, settings: this.values });
    this.told = told;
    const known = new Set([PRESET, ...[...(told.parts ?? []), ...(told.params ?? [])].map((p) => p.key)]);
    if (!told.problem) for (const key of Object.keys(this.values)) if (!known.has(key)) delete this.values[key];
    this.build();
  }

  build() {
    const { told } = this;
    put(this.problem, told.problem ?? '');
    const presets = (told.presets ?? []).length > 1 && { key: PRESET, kind: 'choice', title: W.settings.preset, help: W.settings.presetHelp,
      default: told.standard, choices: told.presets.map((p) => [p, p]) };
    const shape = [presets, ...(told.parts ?? [])].filter(Boolean);
    const reload = () => { this.load(); this.changed(); };
    this.parts = new Fields(shape, this.values, reload);
    this.params = new Fields(told.params ?? [], this.values, () => this.changed());
    this.panel.fill(this.parts.node, this.problem.textContent ? this.problem : null, this.params.node, told.free && this.combos.node);
    this.node.hidden = !shape.length && !this.params.params.length;
    this.tally();
  }

  changed() {
    this.tally();
    this.onchange();
  }

  tally() { this.panel.tally(this.parts.changed + this.params.changed); }

  reset() { this.take({}); }

  /** Other values in place of all that were changed. */
  take(values) {
    for (const key of Object.keys(this.values)) delete this.values[key];
    Object.assign(this.values, values);
    this.load();
    this.onchange();
  }
}
