/* The papers' methods, and a list of the others. The plain lane is no choice. */

import { coloursOf } from '../state/colours.js';
import { button, checkbox, folded, h, put } from './dom.js';
import { W } from '../words/words.js';

/** @param {Form} form */
export function methodList(form) {
  const { catalog } = form;
  const note = h('p.vl-help.vl-method-note', { role: 'status' });
  const chips = catalog.methods
    .filter(({ name }) => name !== 'ar')
    .map((method) => chipOf(form, method, note));
  const papers = button('', () => form.choosePapers());
  const count = h('span');
  const custom = chips.find(({ method }) => method.name === 'custom');
  const others = chips.filter((chip) => chip.method.expert && chip !== custom);
  const nodes = (some) => some.map(({ node }) => node);
  const own = folded('details.vl-others', W.ask.expertMethod, custom.node);
  const more = folded('details.vl-others', count, h('div.vl-methods', nodes(others)), own);
  const first = chips.filter(({ method }) => !method.expert);

  const show = () => {
    const { paperMethods } = form;
    const { methods: lanes } = form.runnable;
    const colours = coloursOf(lanes);
    for (const chip of chips) {
      const lane = lanes.indexOf(chip.method.name);
      if (lane < 0) delete chip.node.dataset.colour;
      else chip.node.dataset.colour = colours[lane];
      chip.show();
      if (chip.box.checked && chip.method.expert) more.open = true;
    }
    const visible = others.filter(({ node }) => !node.hidden).length;
    put(count, W.ask.others(visible));
    more.hidden = !visible && custom.node.hidden;
    const run = paperMethods.length;
    papers.hidden = run < 2;
    put(papers, W.ask.papers(run, run === catalog.papers.length));
  };

  form.on('refused', (sentence) => put(note, sentence));
  form.on('update', show);
  show();
  const legend = h('legend.vl-label', W.ask.methods(catalog.limits.lanes));
  const chosen = h('div.vl-methods', nodes(first), papers);
  return { node: h('fieldset.vl-field', legend, chosen, more), note, show };
}

/** `note` tells of the method while it has the focus. */
function chipOf(form, method, note) {
  const { name, title, help, lossless } = method;
  const box = checkbox((on) => form.toggle(name, on), { value: name });
  const tell = () => put(note, form.refusal(method) ?? `${title}: ${help}`);
  const listeners = { focusin: tell, focusout: () => put(note, '') };
  const lossy = { title: W.lane.lossyHelp, label: W.lane.lossy };
  const parts = [h('i.vl-swatch'), h('span', title), !lossless && h('span.vl-mark', lossy, '≈')];
  const props = { title: help, data: { method: name }, ...listeners };
  const node = h('label.vl-method', props, box, parts);
  const show = () => {
    const refusal = form.refusal(method);
    box.checked = form.request.methods.includes(name);
    box.ariaDisabled = refusal !== null; // it can still be reached, to be told why
    node.hidden = form.pairFacts.methods[name] !== true && !box.checked;
    node.classList.toggle('off', refusal !== null);
    node.title = refusal ?? help;
  };
  return { method, box, node, show };
}
