/* The token tree of one round: what was drafted, what the target kept, what it wrote instead. Own SVG: it redraws in
   a millisecond. Columns are depths, wide enough for their words; node size and edge width follow the draft's
   probability. While a round is on its way it grows: drafts appear level by level, then the check sweeps over them. */

import { explained } from './explain.js';
import { h, svg, put, fmt, shown } from './dom.js';
import { children, depths, reason, rejected } from './fold.js';
import { W } from './words.js';

const PAD = { left: 18, right: 24, top: 22, bottom: 26 };
const CHAR = 7.3; // width of a character of a label
const LEAST = 46; // width of a column at least
const ROW = 12; // height of a row at least
const GAP = 40; // height of a row at most: room for a number below a node and a word above the next one
const TALLEST = 300;

export class TreeView {
  constructor(race, painter) {
    this.race = race;
    this.painter = painter;
    this.facts = h('span.vl-facts');
    this.slider = h('input', {
      type: 'range',
      min: 0,
      max: 0,
      value: 0,
      'aria-label': W.tree.slider,
      on: { input: () => this.scrub(Number(this.slider.value)) },
    });
    this.svg = svg('svg.vl-tree', {
      role: 'img',
      'aria-label': W.tree.title,
      on: { click: (e) => this.pick(e.target.closest('[data-at]')) },
    });
    this.box = h('div.vl-tree-box', { role: 'group', 'aria-label': W.tree.title }, this.svg);
    this.node = h(
      'section.vl-card.vl-tree-card',
      h('header', explained('h2', W.tree.title, W.tree.help), this.facts, this.slider),
      this.box,
    );
    this.draw = this.draw.bind(this);
    race.on('reset round head select focus end begin', (_, type) => {
      if (type === 'end') this.drawn = null; // only now is the last token known to end the answer
      this.wake(type);
    });
    this.resized = new ResizeObserver(() => {
      this.drawn = null;
      painter.now(this.draw);
    });
    this.resized.observe(this.box);
  }

  /** What the visitor asked for is drawn at once, what streams in where that is affordable. */
  wake(type) {
    if (type === 'select' || type === 'focus') this.painter.now(this.draw);
    else this.painter.affordably(this.draw);
  }

  scrub(index) {
    if (this.race.focused) this.race.select({ lane: this.race.focus, round: index });
  }

  /** A node that became part of the answer opens its token. */
  pick(node) {
    const { focused, currentRound } = this.race;
    if (node)
      this.race.select({
        lane: focused.name,
        token: focused.at(currentRound.index).tokens + Number(node.dataset.at),
        picked: true,
      });
  }

  draw() {
    const { race } = this;
    const lane = race.focused;
    const round = race.currentRound;
    this.slider.hidden = !round;
    if (!round) {
      this.svg.replaceChildren();
      this.drawn = null;
      put(this.facts, '');
      return;
    }
    const making = race.selected ? null : race.making(lane);
    this.slider.max = Math.max(0, race.shown(lane) - 1, round.index);
    this.slider.value = round.index;
    const drafted = round.tree.tokens.length - 1;
    const facts =
      making && drafted
        ? W.tree.making(lane.title, round.index, drafted, making.verified > 0)
        : W.tree.facts(lane.title, round.index, drafted, round.path.length - 1);
    put(this.facts, facts);
    this.slider.setAttribute('aria-valuetext', facts);
    const width = this.box.clientWidth;
    if (!width) return;
    const height = this.height(lane);
    if (this.drawn !== round || this.tall !== height) this.paint(round, width, height);
    this.tall = height;
    this.drawn = round;
    this.grow(making);
  }

  /** A keyboard reaches the tree only where there is more of it than fits, to scroll it. */
  reach(scrolls) {
    if (scrolls) this.box.tabIndex = 0;
    else this.box.removeAttribute('tabindex');
    this.box.setAttribute('aria-label', scrolls ? W.tree.scrolls : W.tree.title);
  }

  /** As high as the lane's widest tree needs, so that nothing jumps from round to round. */
  height(lane) {
    if (this.lane !== lane) Object.assign(this, { lane, seen: 0, leaves: 2 });
    for (; this.seen < lane.rounds.length; this.seen += 1)
      this.leaves = Math.max(this.leaves, leavesOf(lane.rounds[this.seen]));
    return Math.min(TALLEST, PAD.top + PAD.bottom + (this.leaves - 1) * GAP);
  }

  paint(round, width, height) {
    const { tree, path } = round;
    const last = round.tokens[round.tokens.length - 1];
    const own = last.origin === 'target' ? last : null;
    const before = this.lane.at(round.index).tokens;
    const said = (i) => this.lane.said(before + i);
    const ownText = own && said(round.tokens.length - 1);
    const plan = lay(tree, path, own !== null);
    const words = (i) => (i < tree.tokens.length ? (tree.texts?.[i] ?? '') : ownText);
    const prob = (i) => (i && tree.draft_logp?.[i] != null ? Math.exp(tree.draft_logp[i]) : null);
    const { px, wide } = columns(plan, words, prob, width);
    const tall = Math.max(height, PAD.top + PAD.bottom + (plan.leaves - 1) * ROW);
    const gap =
      plan.leaves > 1 ? Math.min(GAP, (tall - PAD.top - PAD.bottom) / (plan.leaves - 1)) : 0;
    const first = (tall - gap * (plan.leaves - 1)) / 2;
    const at = (i) => [px[plan.depth[i]], first + plan.row[i] * gap];
    const kept = new Map(path.slice(1).map((node, i) => [node, round.tokens[i].origin]));
    const place = new Map(path.slice(1).map((node, i) => [node, i]));
    const turned = rejected(round)[0];
    const kind = (i) => (i === 0 ? 'root' : (kept.get(i) ?? (i === turned ? 'rejected' : 'idle')));
    const [edges, nodes, labels] = [svg('g'), svg('g'), svg('g')];
    this.parts = []; // what grows with the round: {depth, kind, nodes: elements}
    tree.tokens.forEach((_, i) => {
      const [x, y] = at(i);
      const part = { depth: plan.depth[i], kind: kind(i), nodes: [], own: false };
      const add = (group, element) => {
        group.append(element);
        part.nodes.push(element);
      };
      if (i)
        add(
          edges,
          curve(
            at(tree.parent[i]),
            [x, y],
            'edge',
            kept.has(i) ? 2.4 : 0.8 + 1.4 * (prob(i) ?? 0.3),
          ),
        );
      add(
        nodes,
        svg(
          'circle',
          {
            cx: x,
            cy: y,
            r: i === 0 ? 4 : 2.2 + 3.4 * Math.sqrt(prob(i) ?? 0.2),
            class: 'node',
            'data-at': place.get(i),
          },
          svg('title', { text: this.describe(round, i) }),
        ),
      );
      if (tree.texts) add(labels, label(x, y, tree.texts[i], plan.inner[i]));
      if (prob(i) !== null && (!plan.inner[i] || gap > GAP - 4 || plan.leaves === 1))
        add(labels, chance(x, y, prob(i), tree.texts?.[i] ?? '', plan.inner[i]));
      this.parts.push(part);
    });
    if (own) {
      const [x, y] = at(tree.tokens.length);
      const part = {
        depth: Infinity,
        kind: 'target',
        nodes: [curve(at(path[path.length - 1]), [x, y], 'edge', 1.6)],
      };
      part.nodes.push(
        svg(
          'path.node',
          {
            'data-at': round.tokens.length - 1,
            d: `M${x - 5} ${y}L${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}Z`,
          },
          svg('title', {
            text: W.tree.own(shown(ownText), W.reasons[reason(round, round.tokens.length - 1)]),
          }),
        ),
        label(x + 2, y, ownText, false),
      );
      edges.append(part.nodes[0]);
      nodes.append(part.nodes[1]);
      labels.append(part.nodes[2]);
      this.parts.push(part);
    }
    this.sweep = svg('line.sweep', { y1: 4, y2: tall - 4 });
    this.px = px;
    this.svg.setAttribute('viewBox', `0 0 ${wide} ${tall}`);
    this.svg.style.width = `${wide}px`;
    this.svg.style.height = `${tall}px`;
    this.reach(wide > width);
    this.svg.replaceChildren(edges, nodes, labels, this.sweep);
    this.svg.setAttribute(
      'aria-label',
      W.tree.say(
        round.index,
        tree.tokens.length - 1,
        round.tokens.map((t, i) => `${shown(said(i))} (${W.origins[t.origin]})`),
      ),
    );
  }

  /** Show as much of the round as is made: {drafted, verified}, null for all of it. */
  grow(making) {
    const deepest = this.px.length - 1;
    const drafted = making ? making.drafted * deepest : Infinity;
    const verified = making ? making.verified * deepest : Infinity;
    for (const { depth, kind, nodes } of this.parts) {
      const there = depth === Infinity ? !making : depth === 0 || depth <= drafted;
      const settled = depth === 0 || depth <= verified || !making;
      for (const node of nodes) {
        node.style.opacity = there ? '' : '0';
        const [role] = node.classList;
        node.setAttribute('class', `${role} ${settled ? kind : 'idle'}`);
      }
    }
    const on = making && making.verified > 0 && making.verified < 1;
    this.sweep.style.opacity = on ? '' : '0';
    if (on) {
      const i = Math.min(deepest - 1, Math.floor(verified));
      const x = this.px[i] + (verified - i) * (this.px[i + 1] - this.px[i]);
      this.sweep.setAttribute('x1', x);
      this.sweep.setAttribute('x2', x);
    }
  }

  describe(round, i) {
    const { tree } = round;
    if (i === 0) return W.tree.root(shown(tree.texts?.[0] ?? ''));
    const p = (list) => (list?.[i] != null ? fmt.prob(Math.exp(list[i])) : null);
    return W.tree.node(
      shown(tree.texts?.[i] ?? `#${tree.tokens[i]}`),
      p(tree.draft_logp),
      p(tree.target_logp),
    );
  }
}

/** Rows that a round's tree takes, the target's own token included. */
function leavesOf({ tree, path, tokens }) {
  const inner = new Set(tree.parent);
  const leaves = tree.parent.filter((_, i) => !inner.has(i)).length;
  return leaves + (tokens.at(-1).origin === 'target' && inner.has(path.at(-1)) ? 1 : 0);
}

/** Where the columns stand: wide enough for the words above inner nodes, spread over the room there is; where there is
 *  too little, the whole is wider and scrolls. */
function columns(plan, words, prob, width) {
  const deepest = Math.max(1, ...plan.depth);
  const need = Array.from({ length: deepest }, () => LEAST);
  let right = 0;
  plan.depth.forEach((d, i) => {
    const text = CHAR * short(words(i)).length;
    if (plan.inner[i]) need[d] = Math.max(need[d], text + 8);
    else
      right = Math.max(
        right,
        need.slice(d).reduce((a, b) => a - b, text + (prob(i) === null ? 16 : 52)),
      );
  });
  const least = need.reduce((a, b) => a + b, 0);
  const room = width - PAD.left - PAD.right;
  // The words behind the leaves need room too, however the columns stretch.
  const scale = Math.min(2.2, Math.max(1, (room - Math.max(0, right)) / least));
  const px = [PAD.left];
  for (const step of need) px.push(px[px.length - 1] + step * scale);
  const ends = plan.depth.map(
    (d, i) =>
      px[d] + (plan.inner[i] ? 0 : CHAR * short(words(i)).length + (prob(i) === null ? 16 : 52)),
  );
  return { px, wide: Math.max(width, Math.max(...ends) + PAD.right) };
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
  return svg('path', {
    class: cls,
    'stroke-width': width.toFixed(2),
    d: `M${f(x0)} ${f(y0)}C${f(xm)} ${f(y0)} ${f(xm)} ${f(y1)} ${f(x1)} ${f(y1)}`,
  });
}

/** At most so much of a token beside its node. */
const short = (text) => shown(text.length > 14 ? `${text.slice(0, 13)}…` : text);

/** Beside a leaf, above a node that has children. */
function label(x, y, text, inner) {
  return svg('text.word', {
    x: (x + (inner ? 3 : 8)).toFixed(1),
    y: (y + (inner ? -7 : 3.5)).toFixed(1),
    text: short(text),
  });
}

/** The drafter's probability: behind a leaf's text, below a node that has children. */
function chance(x, y, p, text, inner) {
  const at = inner ? [x - 8, y + 16] : [x + 14 + CHAR * short(text).length, y + 3.5];
  return svg('text.chance', { x: at[0].toFixed(1), y: at[1].toFixed(1), text: fmt.prob(p) });
}
