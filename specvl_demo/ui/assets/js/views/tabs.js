/* The tabs, and the open view. */

import { h } from './dom.js';
import * as link from '../state/link.js';
import { W } from '../words/words.js';

const NAMES = Object.keys(W.tabs);

export class Tabs {
  /** The view that the visitor chose. @type {string | null} */
  picked = null;

  /** contents: elements by view; body: its data names the open one. */
  constructor(contents, body, onopen) {
    this.body = body;
    this.onopen = onopen;
    this.tabs = NAMES.map((name) => this.tab(name));
    this.panels = Object.fromEntries(NAMES.map((name) => [name, panel(name, contents[name])]));
    this.node = h('div.vl-tabs', { role: 'tablist', label: W.name }, this.tabs);
    const addressed = () => this.open(link.view(), false);
    addEventListener('popstate', addressed);
    addressed();
  }

  tab(name) {
    const click = () => {
      this.picked = name;
      this.open(name, true);
    };
    const props = {
      role: 'tab',
      id: `vl-tab-${name}`,
      data: { view: name },
      'aria-controls': `vl-view-${name}`,
      click,
      keydown: (e) => this.key(e),
    };
    return h('button', props, W.tabs[name]);
  }

  /** fresh: with its own address, so that Back works. */
  open(name, fresh) {
    const { dataset } = this.body;
    const other = fresh && dataset.view !== name;
    if (other && link.view() !== name) history.pushState(history.state, '', `#${name}`);
    for (const tab of this.tabs) {
      const on = tab.dataset.view === name;
      tab.ariaSelected = on;
      tab.tabIndex = on ? 0 : -1;
      this.panels[tab.dataset.view].hidden = !on;
    }
    if (other) scrollTo(0, 0);
    dataset.view = name; // on a phone the form belongs to the race alone
    this.onopen(name);
  }

  key(event) {
    const at = this.tabs.indexOf(event.currentTarget);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = this.tabs.at(to % this.tabs.length);
    next.focus();
    next.click();
  }
}

function panel(name, contents) {
  const told = { role: 'tabpanel', id: `vl-view-${name}`, 'aria-labelledby': `vl-tab-${name}` };
  return h('div.vl-panel', { ...told, hidden: true }, contents);
}
