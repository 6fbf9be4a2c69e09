/* The settings of a method: preset, parts, parameters, all told by the server. */

import { exampleLike } from '../state/examples.js';
import { folded, h, put } from './dom.js';
import { fieldsOf, forget, panelOf } from './settings.js';
import { W } from '../words/words.js';

const PRESET = 'preset';
const MOST_FIELDS = 8; // a method with more shows FIRST_FIELDS, the rest is for experts
const FIRST_FIELDS = 4;

/** ask(asked): the server's answer; ontally(): it is known how many values differ. @param {Form} form */
export function methodPanel(form, name, ask, ontally) {
  const { catalog, request } = form;
  const { pair } = request;
  const values = (request.settings[name] ??= {});
  const problem = h('p.vl-help.wrong', { role: 'status' });
  let asked = null;

  const load = async () => {
    const own = (asked = {});
    const told = await ask({ pair, method: name, settings: values });
    if (own !== asked) return; // of settings that have changed since
    show({ parts: [], params: [], presets: [], ...told });
  };

  const show = (told) => {
    const { parts, params } = told;
    const known = [PRESET, ...[...parts, ...params].map(({ key }) => key)];
    // Other parts have other parameters: values that nothing has now would be sent, and refused.
    if (!told.problem)
      for (const key of Object.keys(values)) if (!known.includes(key)) delete values[key];
    const shape = shapeOf(told);
    const chosen = fieldsOf(shape, values, () => {
      load();
      changed();
    });
    const first = params.length > MOST_FIELDS ? FIRST_FIELDS : params.length;
    const [some, rest] = [params.slice(0, first), params.slice(first)];
    const fields = (list) => fieldsOf(list, values, changed);
    put(problem, told.problem ?? '');
    const expert = rest.length > 0 && folded('details', W.ask.expert(rest.length), fields(rest));
    panel.fill(chosen, told.problem && problem, fields(some), expert);
    panel.node.hidden = !shape.length && !params.length;
    tally();
    ontally();
  };

  const tally = () => panel.tally(values, exampleLike(form, name));
  const changed = () => {
    tally();
    form.changed();
  };
  const reset = () => {
    forget(values);
    load();
    form.changed();
  };
  const { title } = catalog.methods.find((method) => method.name === name);
  const panel = panelOf(W.ask.settingsOf(title), reset);
  load();
  return { node: h('div.vl-method-panel', panel.node), pair, values };
}

/** Preset and parts. @returns {Param[]} */
function shapeOf({ parts, presets: choices, standard }) {
  const { preset: title, presetHelp: help, slots } = W.settings;
  const preset = { key: PRESET, kind: 'choice', title, help, default: standard, choices };
  const named = parts.map((part) => {
    const [name, why] = slots[part.key];
    return { ...part, title: name, help: why };
  });
  return choices.length > 1 ? [preset, ...named] : named;
}
