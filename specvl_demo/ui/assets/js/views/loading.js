/* How a pair's weights are loaded, and how finely pictures are shown; and how the last race ran. */

import { h, put } from './dom.js';
import { Fields, Panel } from './settings.js';
import { loadingRefusal, weightKinds } from '../state/request.js';
import { W } from '../words/words.js';

/** The fields of how a pair is loaded, and how the last race ran. */
export class LoadingPanel {
  constructor(catalog, form) {
    this.catalog = catalog;
    this.form = form;
    this.note = h('p.vl-help.vl-refusal', { role: 'status' });
    this.ran = h('p.vl-help');
    this.panel = new Panel(W.loading.title, () => this.reset());
    this.node = this.panel.node;
  }

  /** Make the fields of a pair. */
  show(pair, values) {
    this.pair = pair;
    this.values = values;
    this.fields = new Fields(declared(pair, this.catalog.limits), values, () => {
      this.tell();
      this.form.changed();
    });
    this.panel.fill(this.fields.node, this.note, this.ran);
    this.tell();
  }

  /** Take all changes back. */
  reset() {
    for (const key of Object.keys(this.values)) delete this.values[key];
    this.show(this.pair, this.values);
    this.form.changed();
  }

  /** Say how many values were changed, and why the pair cannot be loaded so. */
  tell() {
    this.panel.tally(this.fields.changed);
    put(this.note, loadingRefusal(this.pair, this.form.request) ?? '');
  }

  /** Show how a race that begins was loaded: its precision, and what its pictures cost. */
  echo({ models, dtype, device, n_visual: visual, n_prompt: all }) {
    put(this.ran, W.loading.ran(models.target, dtype, device, visual, all));
  }
}

/** A pair's ways to be loaded, declared like a method's parameters. */
function declared(pair, limits) {
  const [min, max, standard] = limits.picture_detail;
  /** The name of a kind of weights. */
  const named = (way) => W.loading.ways[way] ?? way;
  /** The declaration of one way. */
  const way = (key) => ({
    key,
    kind: 'choice',
    default: '',
    title: W.loading[key],
    help: W.loading[`${key}Help`],
    choices: [
      ['', W.loading.fits(named(pair.loading.fits[key]))],
      ...Object.entries(pair.loading[key]).map(([value, runs]) => [
        value,
        runs === true ? named(value) : W.ask.unavailable(named(value)),
      ]),
    ],
  });
  return [
    ...weightKinds(pair.loading).map(way),
    {
      ...{ key: 'picture_detail', kind: 'float', default: standard, min, max },
      ...{ title: W.loading.detail, help: W.loading.detailHelp },
    },
  ];
}
