/* The choice of methods: plain check boxes, the papers' first, the others in a list of their own. The autoregressive
   lane is always there and is no choice. */

import { coloursOf } from '../state/colours.js';
import { button, h, icon, put } from './dom.js';
import { W } from '../words/words.js';

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
    this.more = h(
      'details.vl-others',
      h('summary', icon('chevron'), (this.count = h('span'))),
      h(
        'div.vl-methods',
        chips((m) => m.expert && m.name !== 'custom'),
      ),
      h(
        'details.vl-others',
        h('summary', icon('chevron'), h('span', W.ask.expertMethod)),
        chips((m) => m.name === 'custom'),
      ),
    );
    this.node = h(
      'fieldset.vl-field',
      h('legend.vl-label', W.ask.methods(catalog.limits.lanes)),
      h(
        'div.vl-methods',
        chips((m) => !m.expert),
        this.papers,
      ),
      this.more,
      this.note,
    );
  }

  chip(method) {
    const box = h('input', {
      type: 'checkbox',
      value: method.name,
      on: { change: () => this.on.toggle(method.name, box.checked) },
    });
    const tell = () => {
      put(this.note, this.on.refusal(method) ?? `${method.title}: ${method.help}`);
    };
    const hush = () => chip.matches(':hover, :focus-within') || put(this.note, '');
    const chip = h(
      'label.vl-method',
      {
        title: method.help,
        data: { method: method.name },
        on: { focusin: tell, pointerenter: tell, focusout: hush, pointerleave: hush },
      },
      box,
      h('i.vl-swatch'),
      h('span', method.title),
      !method.lossless &&
        h('span.vl-mark', { title: W.lane.lossyHelp, 'aria-label': W.lane.lossy, text: '≈' }),
    );
    return chip;
  }

  say(text) {
    put(this.note, text);
  }

  /** Every method's chip: chosen or not, possible or not, and the colour of its lane. papers: how many run here. */
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
