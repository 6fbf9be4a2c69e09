/* The shape of what a round drafted, small enough to stand beside those of all other rounds. Knows
   trees, nothing of what draws them. */

import { children, depths } from './fold.js';

/** @import { Round } from './records.js' */

/** A round's tree from its root down: how deep and how wide it is, and its edges as [from, to], each
 *  a place [row, depth]; `kept` of them were accepted, of which `relaxed` are marked.
 *  @typedef {[number, number]} Place @typedef {[Place, Place]} Edge
 *  @typedef {{ deep: number, wide: number, idle: Edge[], kept: Edge[], relaxed: Edge[] }} Shape */

/** @param {Round} round @returns {Shape} */
export function shapeOf({ tree, path, tokens }) {
  const depth = depths(tree);
  const kids = children(tree);
  const onPath = new Set(path);
  for (const list of kids) list.sort((a, b) => Number(onPath.has(b)) - Number(onPath.has(a)));
  /** @type {number[]} */
  const row = [];
  let wide = 0;
  /** @param {number} i */
  const walk = (i) => {
    kids[i].forEach(walk);
    row[i] = kids[i].length ? (row[kids[i][0]] + row[kids[i][kids[i].length - 1]]) / 2 : wide++;
  };
  walk(0);
  const shape = { deep: Math.max(...depth), wide, idle: [], kept: [], relaxed: [] };
  tree.parent.forEach((from, i) => {
    if (from < 0) return;
    const at = path.indexOf(i) - 1;
    const { origin } = tokens[at] ?? {};
    const kept = origin === 'relaxed' ? 'relaxed' : 'kept';
    const kind = at < 0 ? 'idle' : kept;
    shape[kind].push([
      [row[from], depth[from]],
      [row[i], depth[i]],
    ]);
  });
  return shape;
}
