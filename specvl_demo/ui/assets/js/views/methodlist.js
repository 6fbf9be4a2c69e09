/* The papers' methods first, the others in a list of their own. The plain lane is no choice. */

import { coloursOf } from '../state/colours.js';
import { button, folded, h, put } from './dom.js';
import { W } from '../words/words.js';

/** The methods as checkboxes. */
export class MethodList {
  /** on: {toggle(name, on), refusal(method): why it cannot be chosen, race(): all papers at once}. */
  constructor(catalog, on) {
    this.catalog = catalog;
    this.on = on;
    this.methods = catalog.methods.filter((m) => m.name !== 'ar');
    this.chips = new Map(this.methods.map((m) => [m.name, this.chip(m)]));
    this.papers = button('', on.race);
    this.note = h('p.vl-help.vl-method-note', { role: 'status' });
    const chips = (test) => this.methods.filter(test).map((m) => this.chips.get(m.name));
    const [first, others, own] = [
      chips((m) => !m.expert),
      chips((m) => m.expert && m.name !== 'custom'),
      chips((m) => m.name === 'custom'),
    ];
    const expert = folded('details.vl-others', W.ask.expertMethod, ...own);
    this.count = h('span');
    this.more = folded('details.vl-others', this.count, h('div.vl-methods', others), expert);
    const legend = h('legend.vl-label', W.ask.methods(catalog.limits.lanes));
    const chosen = h('div.vl-methods', first, this.papers);
    this.node = h('fieldset.vl-field', legend, chosen, this.more, this.note);
  }

  /** A method's checkbox, which tells of the method while it is pointed at. */
  chip(method) {
    const { name, title, help, lossless } = method;
    const change = () => this.on.toggle(name, box.checked);
    const box = h('input', { type: 'checkbox', value: name, on: { change } });
    const tell = () => this.say(this.on.refusal(method) ?? `${title}: ${help}`);
    const hush = () => chip.matches(':hover, :focus-within') || this.say('');
    const on = { focusin: tell, pointerenter: tell, focusout: hush, pointerleave: hush };
    const lossy = { title: W.lane.lossyHelp, 'aria-label': W.lane.lossy, text: '≈' };
    const parts = [h('i.vl-swatch'), h('span', title), !lossless && h('span.vl-mark', lossy)];
    const chip = h('label.vl-method', { title: help, data: { method: name }, on }, box, parts);
    return chip;
  }

  /** Write a sentence below the methods. */
  say(text) {
    put(this.note, text);
  }

  /** Show which methods are chosen and possible. lanes: methods that get a lane; papers: how many
   *  of theirs run here. */
  show(request, served, lanes, papers) {
    const colours = coloursOf(lanes);
    let others = 0; // the expert's way to make one is none of them
    for (const method of this.methods) {
      const { name } = method;
      const chip = this.chips.get(name);
      const reason = this.on.refusal(method);
      const box = chip.querySelector('input');
      box.checked = request.methods.includes(name);
      box.setAttribute('aria-disabled', String(reason !== null)); // it can still be reached, to be told why
      chip.hidden = served[name] !== true && !box.checked;
      chip.classList.toggle('off', reason !== null);
      chip.title = reason ?? method.help;
      if (lanes.includes(name)) chip.dataset.colour = colours[lanes.indexOf(name)];
      else delete chip.dataset.colour;
      others += Number(method.expert && name !== 'custom' && !chip.hidden);
      if (box.checked && method.expert) this.more.open = true;
    }
    put(this.count, W.ask.others(others));
    this.more.hidden = !others && this.chips.get('custom').hidden;
    this.papers.hidden = papers < 2;
    put(this.papers, W.ask.papers(papers, papers === this.catalog.papers.length));
  }
}
