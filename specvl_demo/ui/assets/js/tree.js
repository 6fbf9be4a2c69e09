/* The token tree of one round: what was drafted, what the target kept, what it wrote instead. Own SVG: it redraws in
   a millisecond. Columns are depths, node size and edge width follow the draft's probability. */

import { h, svg, put, fmt, shown } from './dom.js';
import { children, depths, reason, rejected } from './fold.js';
import { W } from './words.js';

const PAD = { left: 18, right: 120, top: 20, bottom: 24 };

export class TreeView {
  constructor(race, painter) {
    this.race = race;
    this.painter = painter;
    this.title = h('h2', { text: W.tree.title });
    this.facts = h('span', { class: 'vl-facts' });
    this.slider = h('input', { type: 'range', min: 0, max: 0, value: 0, 'aria-label': W.tree.slider,
      on: { input: () => this.scrub(Number(this.slider.value)) } });
    this.live = h('button', { type: 'button', class: 'vl-small', 'aria-pressed': 'true', text: W.tree.follow,
      title: W.tree.followHelp, on: { click: () => race.select(null) } });
    this.svg = svg('svg', { class: 'vl-tree', role: 'img', 'aria-label': W.tree.title,
      on: { click: (e) => this.pick(e.target.closest('[data-at]')) } });
    this.node = h('section', { class: 'vl-card vl-tree-card' },
      h('header', {}, this.title, this.facts, this.slider, this.live), this.svg);
    painter.register(this.node, () => this.draw());
    race.on('reset round head select focus end', (_, type) => painter.dirty(this.node, type === 'select' || type === 'focus'));
    this.resized = new ResizeObserver(() => painter.dirty(this.node, true));
    this.resized.observe(this.svg);
  }

  scrub(index) {
    if (this.race.focused) this.race.select({ lane: this.race.focus, round: index });
  }

  /** A node that became part of the answer opens its token. */
  pick(node) {
    const { focused, currentRound } = this.race;
    if (node) this.race.select({ lane: focused.name, token: focused.at(currentRound.index).tokens + Number(node.dataset.at) });
  }

  draw() {
    const { race } = this;
    const lane = race.focused;
    const round = race.currentRound;
    this.live.setAttribute('aria-pressed', String(race.selected === null));
    if (!round) {
      this.svg.replaceChildren();
      put(this.facts, '');
      return;
    }
    this.slider.max = Math.max(0, race.shown(lane) - 1);
    this.slider.value = round.index;
    const drafted = round.tree.tokens.length - 1;
    put(this.facts, W.tree.facts(lane.begin.title, round.index, drafted, round.path.length - 1));
    this.slider.setAttribute('aria-valuetext', W.tree.facts(lane.begin.title, round.index, drafted, round.path.length - 1));
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (width && height) this.paint(round, width, height);
  }

  paint(round, width, height) {
    const { tree, path } = round;
    const last = round.tokens[round.tokens.length - 1];
    const own = last.origin === 'target' ? last : null;
    const plan = lay(tree, path, own !== null);
    const across = Math.max(3, ...plan.depth);
    const px = (d) => PAD.left + (d / across) * (width - PAD.left - PAD.right);
    const gap = plan.leaves > 1 ? (height - PAD.top - PAD.bottom) / (plan.leaves - 1) : height;
    const py = (row) => (plan.leaves > 1 ? PAD.top + row * gap : height / 2);
    const at = (i) => [px(plan.depth[i]), py(plan.row[i])];
    const kept = new Map(path.slice(1).map((node, i) => [node, round.tokens[i].origin]));
    const place = new Map(path.slice(1).map((node, i) => [node, i]));
    const turned = rejected(round)[0];
    const kind = (i) => (i === 0 ? 'root' : kept.get(i) ?? (i === turned ? 'rejected' : 'idle'));
    const prob = (i) => (i && tree.draft_logp?.[i] != null ? Math.exp(tree.draft_logp[i]) : null);
    const edges = svg('g');
    const nodes = svg('g');
    const labels = svg('g');
    tree.tokens.forEach((_, i) => {
      const [x, y] = at(i);
      if (i) edges.append(curve(at(tree.parent[i]), [x, y], `edge ${kind(i)}`, kept.has(i) ? 2.4 : 0.8 + 1.4 * (prob(i) ?? 0.3)));
      nodes.append(svg('circle', { cx: x, cy: y, r: i === 0 ? 4 : 2.2 + 3.4 * Math.sqrt(prob(i) ?? 0.2), class: `node ${kind(i)}`,
        'data-at': place.get(i) }, svg('title', { text: this.describe(round, i) })));
      const roomy = gap >= 12 || (gap >= 8 && (prob(i) ?? 0) > 0.2);
      if (tree.texts && (kind(i) !== 'idle' || roomy)) labels.append(label(x, y, tree.texts[i], kind(i), plan.inner[i]));
      if (prob(i) !== null && gap >= (plan.inner[i] ? 26 : 12)) labels.append(chance(x, y, prob(i), tree.texts?.[i] ?? '', plan.inner[i]));
    });
    if (own) {
      const [x, y] = at(tree.tokens.length);
      edges.append(curve(at(path[path.length - 1]), [x, y], 'edge target', 1.6));
      nodes.append(svg('path', { class: 'node target', 'data-at': round.tokens.length - 1, d: `M${x - 5} ${y}L${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}Z` },
        svg('title', { text: W.tree.own(shown(own.text), W.reasons[reason(round, round.tokens.length - 1)]) })));
      labels.append(label(x + 2, y, own.text, 'target', false));
    }
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.replaceChildren(edges, nodes, labels);
    this.svg.setAttribute('aria-label', W.tree.say(round.index, tree.tokens.length - 1,
      round.tokens.map((t) => `${shown(t.text)} (${W.origins[t.origin]})`)));
  }

  describe(round, i) {
    const { tree } = round;
    if (i === 0) return W.tree.root(shown(tree.texts?.[0] ?? ''));
    const p = (list) => (list?.[i] != null ? fmt.prob(Math.exp(list[i])) : null);
    return W.tree.node(shown(tree.texts?.[i] ?? `#${tree.tokens[i]}`), p(tree.draft_logp), p(tree.target_logp));
  }
}

/** Depth and row of every node: leaves one below the other, parents beside the middle of their children, the kept path
 *  on top. With `own`, one more node at the end stands for the target's own token. */
function lay(tree, path, own) {
  const depth = depths(tree);
  const kids = children(tree);
  const onPath = new Set(path);
  for (const list of kids) list.sort((a, b) => onPath.has(b) - onPath.has(a));
  if (own) {
    const last = path[path.length - 1];
    kids[last].unshift(depth.length);
    kids.push([]);
    depth.push(depth[last] + 1);
  }
  const row = [];
  let leaves = 0;
  const walk = (i) => {
    kids[i].forEach(walk);
    row[i] = kids[i].length ? (row[kids[i][0]] + row[kids[i][kids[i].length - 1]]) / 2 : leaves++;
  };
  walk(0);
  return { depth, row, leaves, inner: kids.map((list) => list.length > 0) };
}

function curve([x0, y0], [x1, y1], cls, width) {
  const xm = (x0 + x1) / 2;
  const f = (v) => v.toFixed(1);
  return svg('path', { class: cls, 'stroke-width': width.toFixed(2),
    d: `M${f(x0)} ${f(y0)}C${f(xm)} ${f(y0)} ${f(xm)} ${f(y1)} ${f(x1)} ${f(y1)}` });
}

/** At most so much of a token beside its node. */
const short = (text) => shown(text.length > 14 ? `${text.slice(0, 13)}…` : text);

/** Beside a leaf, above a node that has children. */
function label(x, y, text, kind, inner) {
  return svg('text', { x: (x + (inner ? 3 : 8)).toFixed(1), y: (y + (inner ? -7 : 3.5)).toFixed(1), class: kind, text: short(text) });
}

/** The drafter's probability: behind a leaf's text, below a node that has children. */
function chance(x, y, p, text, inner) {
  const at = inner ? [x - 8, y + 16] : [x + 14 + 6.7 * short(text).length, y + 3.5];
  return svg('text', { x: at[0].toFixed(1), y: at[1].toFixed(1), class: 'chance', text: fmt.prob(p) });
}
