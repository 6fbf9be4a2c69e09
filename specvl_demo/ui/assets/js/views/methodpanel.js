/* The settings of one method: its preset, its parts, their parameters. Which parameters there are depends on the parts, so the server is asked when a part changes; parts
   that do not fit together are explained. */

import { h, icon, put } from './dom.js';
import { Fields, Panel } from './settings.js';
import { W } from '../words/words.js';

const PRESET = 'preset';
const MOST_FIELDS = 8; // a method with more shows FIRST_FIELDS, the rest is for experts
const FIRST_FIELDS = 4;

export class MethodPanel {
  /** values: the changed settings of this method, kept by the request. on: {ask(asked): the server's answer, change(), tally():
   *  it is known how many differ, like(): the example whose own they are}. */
  constructor(method, pair, values, on) {
    this.method = method;
    this.pair = pair;
    this.values = values;
    this.on = on;
    this.panel = new Panel(W.ask.settingsOf(method.title), () => this.reset());
    this.node = h('div.vl-method-panel', this.panel.node);
    this.problem = h('p.vl-help.wrong', { role: 'status' });
    this.expertCount = h('span');
    this.expert = h('details', h('summary', icon('chevron'), this.expertCount));
    this.load();
  }

  async load() {
    const asked = (this.asked = {});
    const told = await this.on.ask({
      pair: this.pair,
      method: this.method.name,
      settings: this.values,
    });
    if (asked !== this.asked) return; // of settings that have changed since
    this.told = told;
    const known = new Set([
      PRESET,
      ...[...(told.parts ?? []), ...(told.params ?? [])].map((p) => p.key),
    ]);
    if (!told.problem)
      for (const key of Object.keys(this.values)) if (!known.has(key)) delete this.values[key];
    this.build();
  }

  build() {
    const { told } = this;
    put(this.problem, told.problem ?? '');
    const presets = (told.presets ?? []).length > 1 && {
      key: PRESET,
      kind: 'choice',
      title: W.settings.preset,
      help: W.settings.presetHelp,
      default: told.standard,
      choices: told.presets,
    };
    const shape = [
      presets,
      ...(told.parts ?? []).map((part) => ({
        ...part,
        title: W.settings.slots[part.key][0],
        help: W.settings.slots[part.key][1],
      })),
    ].filter(Boolean);
    const reload = () => {
      this.load();
      this.touch();
    };
    this.parts = new Fields(shape, this.values, reload);
    const params = told.params ?? [];
    const first = params.length > MOST_FIELDS ? FIRST_FIELDS : params.length;
    const fields = (some) => new Fields(some, this.values, () => this.touch());
    this.params = fields(params.slice(0, first));
    this.rest = fields(params.slice(first));
    put(this.expertCount, W.ask.expert(this.rest.params.length));
    this.expert.replaceChildren(this.expert.firstChild, this.rest.node);
    this.panel.fill(
      this.parts.node,
      this.problem.textContent ? this.problem : null,
      this.params.node,
      first < params.length && this.expert,
    );
    this.panel.node.hidden = !shape.length && !this.params.params.length;
    this.tally();
    this.on.tally();
  }

  touch() {
    this.tally();
    this.on.change();
  }

  /** How many values differ from the pair's own; until it is known which those are, all that are given. */
  get changed() {
    const { parts, params, rest, values } = this;
    return parts ? parts.changed + params.changed + rest.changed : Object.keys(values).length;
  }

  tally() {
    this.panel.tally(this.changed, this.on.like());
  }

  reset() {
    this.take({});
  }

  /** Other values in place of all that were changed. */
  take(values) {
    for (const key of Object.keys(this.values)) delete this.values[key];
    Object.assign(this.values, values);
    this.load();
    this.on.change();
  }
}
