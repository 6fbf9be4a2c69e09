/* How a pair's weights are loaded, and how finely pictures are shown; and how the last race ran. */

import { h, put } from './dom.js';
import { Fields, Panel, forget } from './settings.js';
import { loadingRefusal, weightKinds } from '../state/request.js';
import { W } from '../words/words.js';

export class LoadingPanel {
  /** @param {Form} form */
  constructor(form) {
    this.form = form;
    this.refusal = h('p.vl-help.vl-refusal', { role: 'status' });
    this.ran = h('p.vl-help');
    this.panel = new Panel(W.loading.title, () => this.reset());
    this.node = this.panel.node;
  }

  /** Make the fields of the form's pair. */
  show() {
    const { catalog, pairFacts: pair, request } = this.form;
    this.values = request.loading[pair.id] ??= {};
    const params = [...weightKinds(pair.loading).map((key) => weightsOf(pair.loading, key))];
    this.fields = new Fields([...params, pictureDetail(catalog)], this.values, () => {
      this.tally();
      this.form.changed();
    });
    this.panel.fill(this.fields.node, this.refusal, this.ran);
    this.tally();
  }

  reset() {
    forget(this.values);
    this.show();
    this.form.changed();
  }

  /** Say how many values were changed, and why the pair cannot be loaded so. */
  tally() {
    this.panel.tally(this.fields.changed);
    put(this.refusal, loadingRefusal(this.form.pairFacts, this.form.request) ?? '');
  }

  /** Show how a race that begins was loaded: its precision, and what its pictures cost. */
  echo({ models, dtype, device, n_visual: visual, n_prompt: all }) {
    put(this.ran, W.loading.ran(models.target, dtype, device, visual, all));
  }
}

/** A choice of weights, as a parameter. @returns {Param} */
function weightsOf(loading, key) {
  const named = (way) => W.loading.ways[way] ?? way;
  const choices = Object.entries(loading[key]).map(([way, runs]) => [
    way,
    runs === true ? named(way) : W.ask.unavailable(named(way)),
  ]);
  return {
    key,
    kind: 'choice',
    default: '',
    title: W.loading[key],
    help: W.loading[`${key}Help`],
    choices: [['', W.loading.fits(named(loading.fits[key]))], ...choices],
  };
}

/** @returns {Param} */
function pictureDetail({ limits }) {
  const [min, max, standard] = limits.picture_detail;
  const { detail: title, detailHelp: help } = W.loading;
  return { key: 'picture_detail', kind: 'float', title, help, default: standard, min, max };
}
