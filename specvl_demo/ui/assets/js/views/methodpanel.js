/* The settings of one method: its preset, its parts, and their parameters, for which the server is asked when a part
   changes. */

import { exampleLike } from '../state/examples.js';
import { folded, h, put } from './dom.js';
import { Fields, Panel, forget } from './settings.js';
import { W } from '../words/words.js';

const PRESET = 'preset';
const MOST_FIELDS = 8; // a method with more shows FIRST_FIELDS, the rest is for experts
const FIRST_FIELDS = 4;

export class MethodPanel {
  /** ask(asked): the server's answer; ontally(): it is known how many values differ. @param {Form} form */
  constructor(form, name, { ask, ontally }) {
    const { catalog, request } = form;
    this.form = form;
    this.pair = request.pair;
    this.name = name;
    this.values = request.settings[name] ??= {};
    this.ask = ask;
    this.ontally = ontally;
    const { title } = catalog.methods.find((method) => method.name === name);
    this.panel = new Panel(W.ask.settingsOf(title), () => this.reset());
    this.node = h('div.vl-method-panel', this.panel.node);
    this.problem = h('p.vl-help.wrong', { role: 'status' });
    this.expertCount = h('span');
    this.load();
  }

  /** Ask the server for the method's parameters with these parts, and show them. */
  async load() {
    const { name: method, pair, values } = this;
    const asked = (this.asked = {});
    const told = await this.ask({ pair, method, settings: values });
    if (asked !== this.asked) return; // of settings that have changed since
    this.told = { parts: [], params: [], presets: [], ...told };
    const known = [PRESET, ...[...this.told.parts, ...this.told.params].map(({ key }) => key)];
    if (!told.problem)
      for (const key of Object.keys(values)) if (!known.includes(key)) delete values[key];
    this.show();
  }

  /** Show preset and parts, then the parameters, of many most for experts. */
  show() {
    const { problem = '', params } = this.told;
    const shape = this.shape();
    const first = params.length > MOST_FIELDS ? FIRST_FIELDS : params.length;
    const fields = (some) => new Fields(some, this.values, () => this.changedByHand());
    this.parts = new Fields(shape, this.values, () => {
      this.load();
      this.changedByHand();
    });
    this.params = fields(params.slice(0, first));
    this.rest = fields(params.slice(first));
    put(this.problem, problem);
    put(this.expertCount, W.ask.expert(params.length - first));
    const expert = first < params.length && folded('details', this.expertCount, this.rest.node);
    this.panel.fill(this.parts.node, problem && this.problem, this.params.node, expert);
    this.panel.node.hidden = !shape.length && !params.length;
    this.tally();
    this.ontally();
  }

  /** Preset and parts, declared like parameters. @returns {Param[]} */
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

  changedByHand() {
    this.tally();
    this.form.changed();
  }

  /** How many values differ from the pair's own; until it is known which those are, all that are
   *  given. */
  get changed() {
    const { parts, params, rest, values } = this;
    return parts ? parts.changed + params.changed + rest.changed : Object.keys(values).length;
  }

  /** The example whose own the values are. */
  get example() {
    return exampleLike(this.form.catalog, this.form.request, this.name);
  }

  tally() {
    this.panel.tally(this.changed, this.example);
  }

  reset() {
    forget(this.values);
    this.load();
    this.form.changed();
  }
}
