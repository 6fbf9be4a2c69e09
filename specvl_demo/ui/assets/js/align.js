/* Aligns two answers: which tokens they share, in order, and what one has in place of the other's.
   Knows lanes, but nothing of the page. */

const MOST = 4096; // beyond that, answers are not compared

/** {shared, other, base, changes}: shared: tokens before the first difference; other and base:
 *  tokens of the lane, and of the baseline, that the other one lacks; changes: [[of the baseline,
 *  of the lane]] texts, in order. null if both are equal, as far as both go, or if they are too
 *  long. */
export function align(base, lane) {
  const [a, b] = [base.tokens, lane.tokens];
  const n = Math.min(a.length, b.length);
  let shared = 0;
  while (shared < n && a[shared].id === b[shared].id) shared += 1;
  if (shared === n || Math.max(a.length, b.length) > MOST) return null;
  const [rows, cols] = [a.length - shared, b.length - shared];
  // length[i][j]: longest common subsequence of a from shared + i and b from shared + j.
  const length = Array.from({ length: rows + 1 }, () => new Uint16Array(cols + 1));
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = cols - 1; j >= 0; j -= 1) {
      length[i][j] =
        a[shared + i].id === b[shared + j].id
          ? length[i + 1][j + 1] + 1
          : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const out = { shared, other: new Set(), base: new Set(), changes: [] };
  let change = null;
  const note = (side, text) => {
    if (!change) out.changes.push((change = ['', '']));
    change[side] += text;
  };
  for (let i = 0, j = 0; i < rows || j < cols;) {
    if (i < rows && j < cols && a[shared + i].id === b[shared + j].id) {
      change = null;
      i += 1;
      j += 1;
    } else if (j < cols && (i === rows || length[i][j + 1] >= length[i + 1][j])) {
      note(1, b[shared + j].text);
      out.other.add(shared + j);
      j += 1;
    } else {
      note(0, a[shared + i].text);
      out.base.add(shared + i);
      i += 1;
    }
  }
  return out;
}
