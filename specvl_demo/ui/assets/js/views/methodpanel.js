/* The settings of one method: its preset, its parts, and their parameters, for which the server is asked when a part
   changes. */

import { folded, h, put } from './dom.js';
import { Fields, Panel } from './settings.js';
import { W } from '../words/words.js';

const PRESET = 'preset';
const MOST_FIELDS = 8; // a method with more shows FIRST_FIELDS, the rest is for experts
const FIRST_FIELDS = 4;

/** The settings of one method. */
export class MethodPanel {
  /** values: the changed settings, kept by the request. on: {ask(asked): the server's answer, change(), tally(): it
   *  is known how many differ, like(): the example whose own they are}. */
  constructor(method, pair, values, on) {
    this.method = method;
    this.pair = pair;
    this.values = values;
    this.on = on;
    this.panel = new Panel(W.ask.settingsOf(method.title), () => this.reset());
    this.node = h('div.vl-method-panel', this.panel.node);
    this.problem = h('p.vl-help.wrong', { role: 'status' });
    this.expertCount = h('span');
    this.load();
  }

  /** Ask the server for the method's parameters with these parts, and show them. */
  async load() {
    const { method, pair, values } = this;
    const asked = (this.asked = {});
    const told = await this.on.ask({ pair, method: method.name, settings: values });
    if (asked !== this.asked) return; // of settings that have changed since
    this.told = { parts: [], params: [], presets: [], ...told };
    const known = [...this.told.parts, ...this.told.params].map(({ key }) => key);
    if (!told.problem)
      for (const key of Object.keys(values))
        if (key !== PRESET && !known.includes(key)) delete values[key];
    this.show();
  }

  /** Show preset and parts, then the parameters, most of them for experts. */
  show() {
    const { problem = '', params } = this.told;
    const shape = this.shape();
    const first = params.length > MOST_FIELDS ? FIRST_FIELDS : params.length;
    const fields = (some) => new Fields(some, this.values, () => this.touch());
    this.parts = new Fields(shape, this.values, () => {
      this.load();
      this.touch();
    });
    this.params = fields(params.slice(0, first));
    this.rest = fields(params.slice(first));
    put(this.problem, problem);
    put(this.expertCount, W.ask.expert(params.length - first));
    const expert = first < params.length && folded('details', this.expertCount, this.rest.node);
    this.panel.fill(this.parts.node, problem && this.problem, this.params.node, expert);
    this.panel.node.hidden = !shape.length && !params.length;
    this.tally();
    this.on.tally();
  }

  /** Preset and parts, declared like parameters. */
  shape() {
    const { parts, presets: choices, standard } = this.told;
    const { preset: title, presetHelp: help, slots } = W.settings;
    const preset = { key: PRESET, kind: 'choice', title, help, default: standard, choices };
    const named = parts.map((part) => {
      const [name, why] = slots[part.key];
      return { ...part, title: name, help: why };
    });
    return choices.length > 1 ? [preset, ...named] : named;
  }

  /** Tell of a changed value. */
  touch() {
    this.tally();
    this.on.change();
  }

  /** How many values differ from the pair's own; until it is known which those are, all that are
   *  given. */
  get changed() {
    const { parts, params, rest, values } = this;
    return parts ? parts.changed + params.changed + rest.changed : Object.keys(values).length;
  }

  /** Say how many values differ. */
  tally() {
    this.panel.tally(this.changed, this.on.like());
  }

  /** Take all changes back. */
  reset() {
    for (const key of Object.keys(this.values)) delete this.values[key];
    this.load();
    this.on.change();
  }
}
