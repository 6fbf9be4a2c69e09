/* The shape of what a round drafted. */

import { children, depths, rejected } from './fold.js';

/** The row of every node: leaves one below the other, parents beside the middle of their children, `path` on top.
 *  Sorts the children. @param {number[][]} kids @param {number[]} path */
export function rowsOf(kids, path) {
  /** @type {number[]} */
  const row = [];
  let leaves = 0;
  /** @param {number} i */
  const walk = (i) => {
    const own = kids[i].sort((a, b) => Number(path.includes(b)) - Number(path.includes(a)));
    own.forEach(walk);
    row[i] = own.length ? (row[own[0]] + row[own.at(-1)]) / 2 : leaves++;
  };
  walk(0);
  return { row, leaves };
}

/** @param {Round} round @returns {Shape} */
export function shapeOf(round) {
  const { tree, path, tokens } = round;
  const depth = depths(tree);
  const { row, leaves: wide } = rowsOf(children(tree), path);
  /** @type {Shape} */
  const shape = { deep: Math.max(...depth), wide, idle: [], kept: [], relaxed: [], rejected: [] };
  const [fell] = rejected(round);
  /** @param {number} i @returns {Place} */
  const place = (i) => [row[i], depth[i]];
  tree.parent.forEach((from, i) => {
    const at = path.indexOf(i) - 1;
    const kept = tokens[at]?.origin === 'relaxed' ? 'relaxed' : 'kept';
    const lost = i === fell ? 'rejected' : 'idle';
    if (from >= 0) shape[at < 0 ? lost : kept].push([place(from), place(i)]);
  });
  return shape;
}
