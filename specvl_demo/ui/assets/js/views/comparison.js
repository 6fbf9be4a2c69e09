/* Below the answers: which agree, where each speed comes from, how sure the model was. */

import { folded, h, put, refill } from './dom.js';
import { W } from '../words/words.js';

const titles = (lanes) => lanes.map(({ title }) => title);

/** confidences: what the page says of each word of confidence. */
export function comparison(race, confidences) {
  const agreement = h('p.vl-verdict', { role: 'status' });
  const sure = h('p.vl-sure', { role: 'status' });
  const slower = h('span');
  const reasons = h('ul');
  const slow = folded('details.vl-slow', slower, { hidden: true }, reasons);
  race.on('reset end head compared', () => {
    const { compared } = race.meta;
    const rivals = race.finished && race.baseline && compared ? race.rivals : [];
    const told = rivals.map(({ name }) => compared.lanes[name]);
    const speeds = told
      .map(({ why }, i) => why && !compared.cut && `${rivals[i].title} ${why}`)
      .filter(Boolean);
    const many = speeds.length > 1;
    const repeats = new Set(told.map((one) => one.repeats));
    const lines = [...agreements(race, rivals), ...(many ? [] : speeds), ...repeats];
    put(agreement, lines.filter(Boolean).join(' · '));
    slow.hidden = !many;
    put(slower, W.run.reasons(speeds.length));
    refill(reasons, many ? speeds.map((text) => h('li', text)) : []);
    const lane = race.list.find((one) => one.end?.confidence);
    const { word, right } = (lane && race.over(lane) && lane.end.confidence) || {};
    sure.dataset.word = word ?? '';
    put(sure, word ? confidences[word].replace('{right}', (100 * (right ?? 0)).toFixed(0)) : '');
  });
  return { agreement, slow, sure };
}

/** What is true of several lanes is told once. */
function agreements(race, rivals) {
  const groups = new Map();
  for (const lane of rivals) {
    const { agreement } = race.meta.compared.lanes[lane.name];
    const { kind, at } = agreement;
    if (kind === 'so_far' && !at) continue;
    const key = ['tie', 'differs'].includes(kind) ? lane : kind;
    groups.set(key, { agreement, lanes: [...(groups.get(key)?.lanes ?? []), lane] });
  }
  return [...groups.values()].map(({ agreement, lanes }) =>
    W.run.agreement[agreement.kind](titles(lanes), agreement, race.baseline.given.text),
  );
}
