/* How a pair is loaded, how finely pictures are shown, how the last race ran. */

import { h, put } from './dom.js';
import { fieldsOf, forget, panelOf } from './settings.js';
import { loadingRefusal, weightKinds } from '../state/request.js';
import { W } from '../words/words.js';

/** @param {Form} form */
export function loadingPanel(form) {
  const refusal = h('p.vl-help.vl-refusal', { role: 'status' });
  const ran = h('p.vl-help');
  const valuesOf = ({ loading, pair }) => (loading[pair] ??= {});
  const show = () => {
    const { catalog, pairFacts: pair, request } = form;
    const weights = weightKinds(pair.loading).map((key) => weightsOf(pair.loading, key));
    const values = valuesOf(request);
    const tally = () => {
      panel.tally(values);
      put(refusal, loadingRefusal(pair, request) ?? '');
    };
    const fields = fieldsOf([...weights, pictureDetail(catalog)], values, () => {
      tally();
      form.changed();
    });
    panel.fill(fields, refusal, ran);
    tally();
  };
  const panel = panelOf(W.loading.title, () => {
    forget(valuesOf(form.request));
    show();
    form.changed();
  });
  /** Tell how the last race ran. */
  const echo = ({ models, dtype, device, n_visual: visual, n_prompt: all }) =>
    put(ran, W.loading.ran(models.target, dtype, device, visual, all));
  form.on('update', show);
  show();
  return { node: panel.node, echo };
}

/** @returns {Param} */
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
