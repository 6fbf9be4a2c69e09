/* What is told of a token or node: why it is in the answer or not, what else was likely, what was noted. */

import { chance, children, countDrafted, countKept, fallen, reason } from './fold.js';
import { probability, shown, wordOf } from './text.js';
import { W, fmt } from '../words/words.js';

const MOST_ROWS = 8;
const MOST_VALUES = 16; // of a list

const sampled = (lane) => Number(lane.begin.sampling.temperature) > 0;

export function whyWritten(lane, token) {
  const { at, origin } = lane.tokens[token];
  const round = lane.rounds[lane.tokens[token].round];
  const top = round.candidates?.[at]?.[0];
  return W.why[reason(round, at)]({
    text: shown(lane.said(token)),
    p: origin === 'target' ? null : probability(round.tree.draft_logp, round.path[at + 1]),
    sampled: sampled(lane),
    top: top && shown(top.text),
    topP: top && fmt.prob(top.prob),
    drafted: countDrafted(round),
    kept: countKept(round),
  });
}

/** Why a node is no token of the answer. @returns {Unused} */
export function whyUnused(lane, round, node) {
  const { tree, tokens, candidates } = round;
  const text = wordOf(tree, node);
  if (node === 0) return { kind: 'root', why: W.tree.root(text), at: -1 };
  const { lost, at } = fallen(round, node);
  const token = tokens[at];
  if (!token) return { kind: 'ended', why: W.fallen.ended, at: -1 };
  const kind = lost === node ? 'rejected' : 'after';
  const written = shown(lane.said(lane.first(round) + at));
  const relaxed = token.origin === 'relaxed' && written;
  const top = candidates?.[at]?.[0];
  const preferred = top ? shown(top.text) : W.fallen.another;
  const why = W.fallen[kind]({
    text,
    p: probability(tree.draft_logp, node),
    lost: wordOf(tree, lost),
    own: relaxed ? preferred : written,
    ownP: top && fmt.prob(top.prob),
    relaxed,
    sampled: sampled(lane),
  });
  return { kind, why, at: kind === 'rejected' ? at : -1 };
}

/** How a token was sampled, if it was. @returns {Draw | null} */
export function drawOf({ notes: { draws } }, at) {
  const of = (name) => (Number.isFinite(draws?.[name]?.[at]) ? draws[name][at] : null);
  const target = of('p');
  if (target === null) return null;
  return { target, drafter: of('q'), gap: of('gap'), overlap: of('overlap') };
}

/** A drafted node's probabilities. */
export const chancesOf = ({ tree }, node) => ({
  target: chance(tree.target_logp, node),
  drafter: chance(tree.draft_logp, node),
});

/** What was drafted after a node, with both probabilities. */
function siblings(round, parent) {
  const { tree } = round;
  if (!tree.draft_logp || !tree.texts) return [];
  return (children(tree)[parent] ?? []).map((node) => {
    const { drafter: prob, target } = chancesOf(round, node);
    return { id: tree.tokens[node], text: tree.texts[node], prob, target };
  });
}

/** The likeliest tokens after a node, the token `id` among them: by the target, by the drafter's views, and as drafted,
 *  all that is recorded off the accepted path. @returns {LikelyTable | null} */
export function likeliest(round, node, id) {
  const at = round.path.indexOf(node);
  const views = Object.entries(round.views ?? {}).flatMap(([name, lists]) =>
    lists[at] ? [[name, lists[at]]] : [],
  );
  const drafted = siblings(round, node);
  if (!views.length && drafted.length) views.push([W.inspect.drafter, drafted]);
  const target = round.candidates?.[at] ?? [];
  if (![target, ...views.map(([, list]) => list)].some((list) => list.length)) return null;
  const judged = drafted
    .filter((token) => token.target !== null)
    .map((token) => ({ ...token, prob: token.target }));
  const rows = new Map();
  for (const [column, list] of [['target', judged], ['target', target], ...views]) {
    for (const token of list) {
      if (!rows.has(token.id)) rows.set(token.id, { ...token, prob: new Map() });
      rows.get(token.id).prob.set(column, token.prob);
    }
  }
  /** By what rows are chosen: the inspected token's comes first. */
  const most = (row) => (row.id === id ? 1 : Math.max(...row.prob.values()));
  const own = (row) => row.prob.get('target') ?? 0;
  const sorted = [...rows.values()]
    .sort((a, b) => most(b) - most(a))
    .slice(0, MOST_ROWS)
    .sort((a, b) => own(b) - own(a) || most(b) - most(a));
  return { columns: ['target', ...views.map(([name]) => name)], rows: sorted };
}

/** What the method's own charts call notes, by key. */
function chartedNoteNames(lane) {
  const series = lane.begin.charts.flatMap((chart) => chart.series);
  const own = series.filter(({ path, name }) => name && /^notes\.\w+$/.test(path));
  return Object.fromEntries(own.map(({ path, name }) => [path.slice('notes.'.length), name]));
}

/** A round's notes that have a name, here or in charts, as [name, value, why]; of lists over nodes that of `node`. */
export function noted(lane, { notes }, names, node = null) {
  const { nodes, why = {} } = notes;
  /** Whether a value has an entry for every drafted node. */
  const over = (value) =>
    node !== null && Array.isArray(nodes) && Array.isArray(value) && value.length === nodes.length;
  const all = { ...chartedNoteNames(lane), ...names };
  return Object.entries(notes)
    .filter(([key]) => Object.hasOwn(all, key))
    .map(([key, value]) => [key, over(value) ? value[nodes.indexOf(node)] : value])
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => [all[key], brief(value), why?.[key]]);
}

/** A note's value in few words. */
function brief(value) {
  if (typeof value === 'number') return Number.isInteger(value) ? String(value) : value.toFixed(3);
  if (typeof value === 'boolean') return value ? W.settings.on : W.settings.off;
  if (Array.isArray(value)) {
    const more = value.length > MOST_VALUES ? ['…'] : [];
    return [...value.slice(0, MOST_VALUES).map(brief), ...more].join(' ');
  }
  if (!value || typeof value !== 'object') return String(value);
  const parts = Object.entries(value).map(([key, part]) => `${W.views[key] ?? key} ${brief(part)}`);
  return parts.join(' · ');
}
