/* The papers' methods first, the others in a list of their own. The plain lane is no choice. */

import { coloursOf } from '../state/colours.js';
import { button, checkbox, folded, h, put } from './dom.js';
import { W } from '../words/words.js';

export class MethodList {
  /** @param {Form} form */
  constructor(form) {
    this.form = form;
    const { limits, methods } = form.catalog;
    this.methods = methods.filter(({ name }) => name !== 'ar');
    this.chips = new Map(this.methods.map((method) => [method.name, this.chip(method)]));
    this.papers = button('', () => form.runPaperMethods());
    this.note = h('p.vl-help.vl-method-note', { role: 'status' });
    const chips = (fits) => this.methods.filter(fits).map(({ name }) => this.chips.get(name));
    const others = chips(({ expert, name }) => expert && name !== 'custom');
    const expert = folded('details.vl-others', W.ask.expertMethod, this.chips.get('custom'));
    this.count = h('span');
    this.more = folded('details.vl-others', this.count, h('div.vl-methods', others), expert);
    const legend = h('legend.vl-label', W.ask.methods(limits.lanes));
    const first = h(
      'div.vl-methods',
      chips(({ expert: other }) => !other),
      this.papers,
    );
    this.node = h('fieldset.vl-field', legend, first, this.more, this.note);
    form.on('refused', (sentence) => put(this.note, sentence));
  }

  /** A method's checkbox, which tells of the method while it is pointed at. */
  chip(method) {
    const { name, title, help, lossless } = method;
    const box = checkbox((on) => this.form.toggle(name, on), { value: name });
    const tell = () => put(this.note, this.form.refusal(method) ?? `${title}: ${help}`);
    const hush = () => chip.matches(':hover, :focus-within') || put(this.note, '');
    const listeners = { focusin: tell, pointerenter: tell, focusout: hush, pointerleave: hush };
    const lossy = { title: W.lane.lossyHelp, 'aria-label': W.lane.lossy, text: '≈' };
    const parts = [h('i.vl-swatch'), h('span', title), !lossless && h('span.vl-mark', lossy)];
    const props = { title: help, data: { method: name }, ...listeners };
    const chip = h('label.vl-method', props, box, parts);
    return chip;
  }

  /** Show which methods are chosen and possible; those that cannot sample have no lane. */
  show() {
    const { request, unsampled, pairFacts, paperMethods, catalog } = this.form;
    const lanes = request.methods.filter((name) => !unsampled.some((left) => left.name === name));
    const colours = coloursOf(lanes); // the plain lane's number is 0
    let others = 0; // the expert's way to make one is none of them
    for (const method of this.methods) {
      const { name, expert } = method;
      const chip = this.chips.get(name);
      const reason = this.form.refusal(method);
      const box = chip.querySelector('input');
      box.checked = request.methods.includes(name);
      box.setAttribute('aria-disabled', reason !== null); // it can still be reached, to be told why
      chip.hidden = pairFacts.methods[name] !== true && !box.checked;
      chip.classList.toggle('off', reason !== null);
      chip.title = reason ?? method.help;
      if (lanes.includes(name)) chip.dataset.colour = colours[lanes.indexOf(name)];
      else delete chip.dataset.colour;
      if (expert && name !== 'custom' && !chip.hidden) others += 1;
      if (box.checked && expert) this.more.open = true;
    }
    put(this.count, W.ask.others(others));
    this.more.hidden = !others && this.chips.get('custom').hidden;
    const papers = paperMethods.length;
    this.papers.hidden = papers < 2;
    put(this.papers, W.ask.papers(papers, papers === catalog.papers.length));
  }
}
