/* The small pictures of the lessons: trees, patches, bars. Drawn from a few numbers; they are
   illustrations, not measurements. */

import { svg } from './dom.js';

const W = 320;
const H = 132;

const canvas = (label, ...children) =>
  svg(
    'svg',
    { viewBox: `0 0 ${W} ${H}`, class: 'vl-diagram', role: 'img', 'aria-label': label },
    ...children,
  );

const dot = (x, y, kind, r = 5) => svg('circle', { cx: x, cy: y, r, class: `node ${kind}` });

const link = ([x0, y0], [x1, y1], kind) =>
  svg('path', {
    class: `edge ${kind}`,
    d: `M${x0} ${y0}C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`,
  });

const say = (x, y, text, kind = '', anchor = 'middle') =>
  svg('text', { x, y, class: kind, 'text-anchor': anchor, text });

const box = (kind, x, y, width, height, rx = 3) =>
  svg('rect', { x, y, width, height, rx, class: kind });

/** A bar that stands on a floor. */
const bar = (kind, x, floor, width, height) => box(kind, x, floor - height, width, height, null);

/** What is drawn n times. */
const each = (n, draw) => Array.from({ length: n }, (_, i) => draw(i));

/** A drafted tree: parents, which nodes were kept, where it is drawn. */
function drawTree(parent, kept, x0, x1, y0, y1) {
  const depth = [];
  parent.forEach((p, i) => {
    depth[i] = p < 0 ? 0 : depth[p] + 1;
  });
  const leaf = parent.map((_, i) => !parent.includes(i));
  const rows = [];
  let next = 0;
  const walk = (i) => {
    const kids = parent.flatMap((p, j) => (p === i ? [j] : []));
    kids.forEach(walk);
    rows[i] = kids.length ? (rows[kids[0]] + rows[kids[kids.length - 1]]) / 2 : next++;
  };
  walk(0);
  const deepest = Math.max(...depth);
  const leaves = leaf.filter(Boolean).length;
  const at = (i) => [
    x0 + ((x1 - x0) * depth[i]) / deepest,
    leaves > 1 ? y0 + ((y1 - y0) * rows[i]) / (leaves - 1) : (y0 + y1) / 2,
  ];
  const on = new Set(kept);
  const kind = (i) => (i === 0 ? 'root' : on.has(i) ? 'draft' : 'idle');
  return [
    ...parent.flatMap((p, i) => (p < 0 ? [] : [link(at(p), at(i), kind(i))])),
    ...parent.map((_, i) => dot(...at(i), kind(i), i ? 4.5 : 5)),
  ];
}

export const DIAGRAMS = {
  ar: () =>
    canvas(
      'One token after the other',
      ...[0, 1, 2, 3, 4, 5]
        .flatMap((i) => [
          i && link([30 + 52 * (i - 1), 66], [30 + 52 * i, 66], 'target'),
          dot(30 + 52 * i, 66, i ? 'target' : 'root'),
        ])
        .filter(Boolean),
    ),
  chain: () =>
    canvas(
      'Five drafted tokens, three kept',
      ...drawTree([-1, 0, 1, 2, 3, 4], [1, 2, 3], 24, 290, 66, 66),
      say(264, 44, 'rejected'),
      say(104, 44, 'kept'),
    ),
  tree: () =>
    canvas(
      'A tree of fixed shape with its kept path',
      ...drawTree([-1, 0, 0, 0, 1, 1, 2, 3, 4, 4, 5, 8], [1, 4, 8], 24, 296, 16, 116),
    ),
  ngram: () =>
    canvas(
      'The same words earlier in the text',
      say(10, 44, '… a small blue circle at the top …', '', 'start'),
      say(10, 96, '… a small blue', '', 'start'),
      say(116, 96, 'circle at the', 'draft', 'start'),
      svg('path.edge.draft', { d: 'M150 80C170 60 176 60 150 52' }),
    ),
  mtp: () =>
    canvas(
      'One more layer on top of the target’s drafts the tokens after the next',
      ...each(4, (i) => box('word', 16, 108 - 20 * i, 90, 15)),
      box('ghost', 16, 20, 90, 15),
      say(61, 32, 'one more'),
      ...drawTree([-1, 0, 1, 2], [1, 2], 150, 300, 27, 27),
    ),
  specvlm: () =>
    patches(
      'The drafter sees a few patches only',
      (x, y) => (x === 2 && y > 1 && y < 4) || (x === 3 && y === 2) || (x + 2 * y) % 7 === 0,
    ),
  tabed: () =>
    canvas(
      'Two views, mixed by weights',
      ...bars(
        [
          ['picture', [0.7, 0.2, 0.1], 14],
          ['text only', [0.3, 0.6, 0.1], 74],
        ],
        [0.75, 0.25],
      ),
    ),
  sage: () =>
    canvas(
      'Sure: deep and thin. Lost: shallow and wide',
      ...drawTree([-1, 0, 1, 2, 3, 4, 5, 2], [1, 2, 3, 4], 14, 148, 30, 84),
      ...drawTree([-1, 0, 0, 0, 0, 0, 1, 1, 2, 3], [2], 186, 300, 18, 104),
      say(80, 124, 'sure: deep'),
      say(244, 124, 'lost: wide'),
    ),
  lvspec: () =>
    relevance(
      'Only the most visual tokens must match',
      ['there', 'is', 'a', 'red', 'star', 'at', 'the'],
      [0.2, 0.15, 0.25, 0.85, 0.95, 0.35, 0.2],
      0.6,
      'cut',
    ),
  fly: () =>
    relevance(
      'Where the target hesitates, a mismatch may pass',
      ['it', 'shows', 'two', 'big', 'stars', 'on'],
      [0.2, 0.75, 0.1, 0.8, 0.15, 0.3],
      0.55,
      'gate',
    ),
  eagle2: () => best('The likeliest paths are grown first'),
  eagle3: () => best('Three layers feed one; the likeliest paths are grown first'),
  dflash: () =>
    canvas(
      'One forward turns every mask into a token',
      ...[0, 1, 2, 3, 4].flatMap((i) => [
        box(i ? 'ghost' : 'word', 40 + 50 * i, 88, 40, 22),
        ...(i
          ? [link([60 + 50 * i, 86], [60 + 50 * i, 46], 'draft'), dot(60 + 50 * i, 40, 'draft')]
          : []),
      ]),
      say(160, 18, 'drafted at once'),
      say(160, 128, 'the last token, and masks'),
    ),
  native: () =>
    canvas(
      'Every draft looks at the target’s own memory',
      ...each(6, (i) => box('word', 16 + 28 * i, 22, 22, 20)),
      ...[0, 1, 2].flatMap((i) => [
        link([100, 44], [196 + 44 * i, 88], 'draft'),
        dot(196 + 44 * i, 94, 'draft'),
      ]),
      say(98, 16, 'the target’s keys and values'),
      say(240, 120, 'drafts without a cache'),
    ),
  hivis: () =>
    canvas(
      'The drafter sees the words and the target’s states, never the patches',
      ...each(5, (i) => box('ghost', 16 + 26 * i, 22, 20, 20)),
      ...each(5, (i) => box('word', 160 + 30 * i, 22, 24, 20)),
      ...each(5, (i) => link([172 + 30 * i, 44], [172 + 30 * i, 88], 'draft')),
      ...each(5, (i) => dot(172 + 30 * i, 94, 'draft')),
      say(80, 64, 'hidden patches'),
      say(234, 120, 'words + target states'),
    ),
  dream: () =>
    canvas(
      'Three blocks, the middle one looks at the target’s features',
      ...each(3, (i) => box(i === 1 ? 'word strong' : 'word', 24 + 86 * i, 74, 64, 34, 6)),
      link([88, 91], [110, 91], 'draft'),
      link([174, 91], [196, 91], 'draft'),
      link([142, 44], [142, 74], 'target'),
      box('ghost', 70, 16, 144, 28, 6),
      say(142, 34, 'target features'),
      say(142, 95, 'cross'),
      say(56, 95, 'block'),
      say(228, 95, 'block'),
    ),
  custom: () =>
    canvas(
      'Four menus',
      ...['drafter', 'views', 'tree', 'verifier'].flatMap((text, i) => [
        box('word', 10 + 76 * i, 46, 68, 36, 6),
        say(44 + 76 * i, 68, text),
      ]),
    ),
};

function best(label) {
  const parents = [-1, 0, 0, 0, 1, 1, 4, 4, 6, 6, 2];
  return canvas(label, ...drawTree(parents, [1, 4, 6, 8], 24, 296, 16, 116));
}

function patches(label, kept) {
  const cells = each(36, (i) => {
    const [x, y] = [i % 6, Math.floor(i / 6)];
    return box(kept(x, y) ? 'word strong' : 'ghost', 102 + 20 * x, 6 + 20 * y, 18, 18);
  });
  return canvas(label, ...cells);
}

function bars(rows, weights) {
  const out = rows.flatMap(([name, values, y], r) => [
    say(8, y + 22, name, '', 'start'),
    ...values.map((v, i) => bar(r ? 'bar two' : 'bar one', 80 + 30 * i, y + 40, 22, 40 * v)),
    say(186, y + 26, `× ${weights[r]}`, '', 'start'),
  ]);
  const mixed = each(3, (i) =>
    rows.reduce((sum, [, values], r) => sum + weights[r] * values[i], 0),
  );
  return [
    ...out,
    ...mixed.map((v, i) => bar('bar', 236 + 26 * i, 96, 20, 70 * v)),
    say(272, 116, 'mixture'),
  ];
}

function relevance(label, words, values, cut, name) {
  const gap = 300 / words.length;
  const y = (v) => 92 - 76 * v;
  return canvas(
    label,
    svg('line', { x1: 10, x2: 310, y1: y(cut), y2: y(cut), class: 'cut' }),
    say(312, y(cut) - 4, name, '', 'end'),
    ...values.map((v, i) =>
      dot(10 + gap * (i + 0.5), y(v), v > cut === (name === 'cut') ? 'target' : 'relaxed'),
    ),
    ...words.map((w, i) => say(10 + gap * (i + 0.5), 120, w)),
  );
}
