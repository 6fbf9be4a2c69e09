/* The token tree of one round. Columns are depths; node size and edge width follow the draft's probability. A round
   on its way grows level by level, then the check sweeps over it. */

import { button, h, put, slider, svg, term } from './dom.js';
import {
  chance,
  children,
  countDrafted,
  countKept,
  depths,
  leaves,
  reason,
  rejected,
} from '../records/fold.js';
import { rowsOf } from '../records/shapes.js';
import { probability, shown, wordOf } from '../records/text.js';
import { W, fmt } from '../words/words.js';

const PAD = { left: 18, right: 14, top: 36, bottom: 26 };
const LETTER_WIDTH = 7.3;
const COLUMN = 46; // width at least
const TIGHT_COLUMN = 39; // where words stand on two lines, every other one higher
const ROW = 12; // height at least
const ROOMY_ROW = 40; // at most: room for a number below a node and a word above the next one
const TALLEST = 300;
const FITTED_ROW = 26;
const MOST_LETTERS = 14;
const FEWER_LETTERS = 8;
const NEAR = 20; // a node takes a click so far from it

let serial = 0;

export class TreeView {
  /** fitted: it fills its box, without scrolling. */
  constructor(race, painter, fitted = false) {
    this.fitted = fitted;
    this.row = fitted ? FITTED_ROW : ROOMY_ROW;
    this.race = race;
    this.painter = painter;
    this.facts = h('span.vl-facts');
    const select = (round) => race.select({ lane: race.focus, round });
    this.slider = slider(W.tree.slider, 0, select);
    const step = (sign, by, name) => {
      const go = () => {
        this.slider.stepUp(by);
        select(this.slider.valueAsNumber);
      };
      return button(sign, go, 'vl-small', { label: name });
    };
    this.turn = [step('‹', -1, W.tree.previous), this.slider, step('›', 1, W.tree.next)];
    this.svg = svg('svg.vl-tree', { role: 'none' });
    this.id = `vl-tree${(serial += 1)}`;
    const { title, help } = W.tree;
    const listeners = { click: (e) => this.click(e), keydown: (e) => this.key(e) };
    const props = { role: 'tree', tabindex: '0', label: title, ...listeners };
    this.box = h('div.vl-tree-box', props, this.svg);
    const head = h('header', h('h2', term(title, help)), this.facts, this.turn);
    this.node = h('section.vl-card.vl-tree-card', head, this.box);
    race.on('end', () => (this.drawn = null)); // only now is the last token known to end the answer
    painter.followRound(race, this.draw);
    new ResizeObserver(() => {
      this.drawn = null;
      painter.now(this.draw);
    }).observe(this.box);
  }

  click({ target, clientX, clientY }) {
    if (!this.spots) return;
    const { left, top } = this.svg.getBoundingClientRect();
    const off = this.spots.map(([x, y]) => Math.hypot(left + x - clientX, top + y - clientY));
    const nearest = off.indexOf(Math.min(...off));
    const own = target.closest('[data-node]')?.dataset.node;
    if (own || off[nearest] <= NEAR) this.pick(Number(own ?? nearest));
  }

  /** Arrows lead to the parent, the topmost child, the nodes above and below. */
  key(event) {
    if (!this.spots) return;
    const { depth, row, parent } = this.plan;
    const now = this.picked ?? 0;
    const nodes = [...depth.keys()].sort((a, b) => row[a] - row[b]);
    const column = nodes.filter((i) => depth[i] === depth[now]);
    const moves = {
      ArrowLeft: parent[now],
      ArrowRight: nodes.find((i) => parent[i] === now),
      ArrowUp: column[column.indexOf(now) - 1],
      ArrowDown: column[column.indexOf(now) + 1],
      Enter: now,
    };
    if (event.key === 'Escape') this.race.select(null);
    else if (!Object.hasOwn(moves, event.key)) return;
    else if (moves[event.key] >= 0) this.pick(moves[event.key]);
    event.preventDefault();
  }

  /** Select a node: of one that became part of the answer, its token. */
  pick(node) {
    const { focused, currentRound: round } = this.race;
    const own = node === round.tree.tokens.length;
    const at = own ? round.tokens.length - 1 : round.path.indexOf(node) - 1;
    const token = focused.first(round) + at;
    this.race.pick(focused, at >= 0 ? { token } : { round: round.index, node });
  }

  /** The selected node, or the selected token's. The target's own comes last. */
  get picked() {
    const { selected, focused, currentRound: round } = this.race;
    const token = focused.tokens[selected?.token];
    return token ? (round.path[token.at + 1] ?? round.tree.tokens.length) : selected?.node;
  }

  draw = () => {
    const { race } = this;
    const { focused: lane, currentRound: round } = race;
    for (const node of this.turn) node.hidden = !round;
    if (!round) {
      this.svg.replaceChildren();
      this.drawn = this.spots = null;
      this.box.ariaLabel = W.tree.title;
      put(this.facts, '');
      return;
    }
    const making = race.selected ? null : race.making(lane);
    this.slider.max = Math.max(0, race.roundsShown(lane) - 1, round.index);
    this.slider.value = round.index;
    const drafted = countDrafted(round);
    const told = [lane.title, round.index, drafted];
    const facts =
      making && drafted
        ? W.tree.making(...told, making.verified > 0)
        : W.tree.facts(...told, countKept(round));
    put(this.facts, facts);
    this.slider.ariaValueText = facts;
    const { clientWidth, clientHeight } = this.box;
    if (!clientWidth) return;
    const height = this.height(lane);
    const width = this.fitted ? (clientWidth * height) / clientHeight : clientWidth;
    if (this.drawn !== round || this.tall !== height) this.drawRound(round, width, height);
    this.tall = height;
    this.drawn = round;
    this.grow(making);
    this.markPicked();
  };

  /** Where the box is too small, the picked node is scrolled into sight, else the end of the round. */
  markPicked() {
    const { box, parts, picked, spots } = this;
    parts.forEach(({ node }, i) => {
      node.classList.toggle('picked', i === picked);
      node.ariaSelected = i === picked;
    });
    if (spots[picked]) box.setAttribute('aria-activedescendant', `${this.id}-${picked}`);
    else box.removeAttribute('aria-activedescendant');
    const [x] = spots[picked] ?? spots.at(-1);
    const { to } = parts[picked] ?? parts.at(-1);
    const { clientWidth, scrollLeft } = box;
    box.scrollLeft = Math.min(Math.max(scrollLeft, to - clientWidth), x - PAD.left);
  }

  /** As the lane's widest tree needs, so that nothing jumps between rounds; each is counted once. */
  height(lane) {
    if (this.lane !== lane) {
      this.lane = lane;
      this.seen = 0;
      this.leaves = 2;
    }
    for (; this.seen < lane.rounds.length; this.seen += 1)
      this.leaves = Math.max(this.leaves, countLeaves(lane.rounds[this.seen]));
    return Math.min(TALLEST, PAD.top + PAD.bottom + (this.leaves - 1) * this.row);
  }

  drawRound(round, width, height) {
    const { tree, path } = round;
    const last = round.tokens.length - 1;
    const first = this.lane.first(round);
    const said = (i) => this.lane.said(first + i);
    const drafted = tree.tokens.length; // the node after all of them is the target's own token
    const plan = lay(tree, path, round.tokens[last].origin === 'target');
    const begin = round.index ? [] : [W.tree.start]; // for a mark of the prompt
    const words = (i) => (i < drafted ? (begin[i] ?? tree.texts?.[i] ?? '') : said(last));
    const prob = (i) => (i ? chance(tree.draft_logp, i) : null);
    const { columns, ends, wide, most, lines } = layColumns(plan, words, prob, width, this.fitted);
    const below = plan.rows - 1;
    const edge = PAD.top + PAD.bottom;
    const tall = Math.max(height, edge + below * ROW);
    const gap = below ? Math.min(ROOMY_ROW, (tall - edge) / below) : 0;
    const top = (tall - gap * below) / 2;
    this.spots = plan.depth.map((d, i) => [columns[d], top + plan.row[i] * gap]);
    const kinds = new Map(path.slice(1).map((node, i) => [node, round.tokens[i].origin]));
    kinds.set(0, 'root').set(drafted, 'target').set(rejected(round)[0], 'rejected');
    const groups = [svg('g'), svg('g'), svg('g', { 'aria-hidden': 'true' })];
    this.parts = this.spots.map(([x, y], i) => {
      const own = i === drafted;
      const p = prob(i);
      const kind = kinds.get(i) ?? 'idle';
      const node = this.drawNode(i, own, p, describe(round, i, said(last)));
      const thick = ['draft', 'relaxed'].includes(kind) ? 2.4 : 0.8 + 1.4 * (p ?? 0.3);
      const line = i > 0 && edgeBetween(this.spots[plan.parent[i]], [x, y], own ? 1.6 : thick);
      const inner = plan.inner[i];
      const text = short(words(i), most);
      const high = lines > 1 && plan.depth[i] % 2 === 1;
      const roomy = !inner || gap > ROOMY_ROW - 4 || !below;
      const written = [
        (own || tree.texts) && label(own ? x + 2 : x, y, text, inner, high),
        p !== null && roomy && chanceLabel(x, y, p, text, inner),
      ].filter(Boolean);
      for (const one of written) one.dataset.node = i;
      const drawn = [line ? [line] : [], [node], written];
      drawn.forEach((some, k) => groups[k].append(...some));
      const depth = own ? Infinity : plan.depth[i];
      return { depth, kind, node, nodes: drawn.flat(), to: ends[i] + PAD.right };
    });
    this.plan = plan;
    this.columns = columns;
    this.sweep = svg('line.sweep', { y1: 4, y2: tall - 4 });
    this.svg.setAttribute('viewBox', `0 0 ${wide} ${tall}`);
    if (!this.fitted) Object.assign(this.svg.style, { width: `${wide}px`, height: `${tall}px` });
    this.svg.replaceChildren(...groups, this.sweep);
    const tokens = round.tokens.map((t, i) => `${shown(said(i))} (${W.origins[t.origin]})`);
    this.box.ariaLabel = W.tree.say(round.index, drafted - 1, tokens);
  }

  drawNode(i, own, p, title) {
    const [x, y] = this.spots[i];
    const shape = own
      ? { d: `M${x - 5} ${y}L${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}Z` }
      : { cx: x, cy: y, r: i === 0 ? 4 : 2.2 + 3.4 * Math.sqrt(p ?? 0.2) };
    const props = { id: `${this.id}-${i}`, role: 'treeitem', 'data-node': i, ...shape };
    return svg(own ? 'path.node' : 'circle.node', props, svg('title', title));
  }

  /** making: how much is drafted and verified, null for all. */
  grow(making) {
    const { columns, parts, sweep } = this;
    const deepest = columns.length - 1;
    const [drafted, verified] = making
      ? [making.drafted * deepest, making.verified * deepest]
      : [Infinity, Infinity];
    for (const { depth, kind, nodes } of parts) {
      for (const node of nodes) {
        node.style.opacity = depth <= drafted ? '' : '0';
        const [role] = node.classList;
        node.setAttribute('class', `${role} ${depth <= verified ? kind : 'idle'}`);
      }
    }
    const i = Math.floor(verified);
    const sweeps = verified > 0 && i < deepest;
    sweep.style.opacity = sweeps ? '' : '0';
    if (!sweeps) return;
    const x = columns[i] + (verified - i) * (columns[i + 1] - columns[i]);
    for (const end of ['x1', 'x2']) sweep.setAttribute(end, x);
  }
}

function describe(round, i, own) {
  const { tree, tokens } = round;
  if (i === 0) return W.tree.root(shown(tree.texts?.[0] ?? ''));
  if (i === tree.tokens.length)
    return W.tree.own(shown(own), W.reasons[reason(round, tokens.length - 1)]);
  const [draft, target] = [tree.draft_logp, tree.target_logp].map((logp) => probability(logp, i));
  return W.tree.node(wordOf(tree, i), draft, target);
}

/** With the target's own token, which is a leaf too. */
function countLeaves({ tree, path, tokens }) {
  const ends = leaves(tree);
  return ends.length + Number(tokens.at(-1).origin === 'target' && !ends.includes(path.at(-1)));
}

/** Where room is short, a chain's words stand on two lines, then are cut; then all scrolls or shrinks. */
function layColumns(plan, words, prob, width, fitted) {
  const attempt = (most, lines) => place(plan, words, prob, width, most, lines);
  const first = attempt(MOST_LETTERS, 1);
  if (!plan.single || (fitted && plan.rows > 1) || first.wide <= width) return first;
  const second = attempt(MOST_LETTERS, 2);
  return fitted || second.wide <= width ? second : attempt(FEWER_LETTERS, 2);
}

/** Where columns and words lie, words being cut to `most` letters. Inner words stand above their edges and have to fit
 *  between two columns; those of leaves stand behind them. */
function place(plan, words, prob, width, most, lines) {
  const deepest = Math.max(1, ...plan.depth);
  /** @type {number[]} */
  const need = Array(deepest).fill(lines > 1 ? TIGHT_COLUMN : COLUMN);
  const labelWidth = (i) => LETTER_WIDTH * short(words(i), most).length;
  const behindLeaf = (i) => labelWidth(i) + (prob(i) === null ? 16 : 52);
  plan.depth.forEach((d, i) => {
    const over = plan.long[i] ? lines : 1;
    for (let k = d; plan.inner[i] && k < d + over; k += 1)
      need[k] = Math.max(need[k], (labelWidth(i) + 8) / over);
  });
  const least = need.reduce((a, b) => a + b, 0);
  const over = plan.depth.map((d, i) =>
    plan.inner[i] ? 0 : need.slice(d).reduce((a, b) => a - b, behindLeaf(i)),
  );
  const room = width - PAD.left - PAD.right;
  // The words behind the leaves need room too.
  const scale = Math.min(2.2, Math.max(1, (room - Math.max(0, ...over)) / least));
  const columns = [PAD.left];
  for (const step of need) columns.push(columns.at(-1) + step * scale);
  const ends = plan.depth.map(
    (d, i) => columns[d] + (plan.inner[i] ? labelWidth(i) + 3 : behindLeaf(i)),
  );
  const wide = Math.max(width, Math.ceil(Math.max(...ends)) + PAD.right);
  return { columns, ends, wide, most, lines };
}

/** With `own`, one more node at the end stands for the target's own token. */
function lay(tree, path, own) {
  const depth = depths(tree);
  const parent = [...tree.parent];
  const kids = children(tree);
  const last = path.at(-1);
  if (own) {
    kids[last].unshift(depth.length);
    kids.push([]);
    depth.push(depth[last] + 1);
    parent.push(last);
  }
  const { row, leaves: rows } = rowsOf(kids, own ? [...path, parent.length - 1] : path);
  const inner = kids.map((list) => list.length > 0);
  const levels = depth.filter((_, i) => inner[i]);
  const single = new Set(levels).size === levels.length; // no two words can meet but along the chain
  const long = kids.map((list) => list.length === 1 && inner[list[0]]); // its word may pass over the next column
  return { depth, row, rows, parent, inner, single, long };
}

function edgeBetween(from, to, width) {
  const [x0, y0] = from;
  const [x1, y1] = to;
  const xm = (x0 + x1) / 2;
  const points = (...values) => values.map((v) => v.toFixed(1)).join(' ');
  const d = `M${points(x0, y0)}C${points(xm, y0, xm, y1, x1, y1)}`;
  return svg('path.edge', { 'stroke-width': width.toFixed(2), d });
}

const short = (text, most) => shown(text.length > most ? `${text.slice(0, most - 1)}…` : text);

const textAt = (role, x, y, text) =>
  svg(`text.${role}`, { x: x.toFixed(1), y: y.toFixed(1) }, text);

function label(x, y, text, inner, high) {
  const above = high ? -20 : -7;
  return textAt('word', x + (inner ? 3 : 8), y + (inner ? above : 3.5), text);
}

const chanceLabel = (x, y, p, text, inner) =>
  inner
    ? textAt('chance', x - 8, y + 16, fmt.prob(p))
    : textAt('chance', x + 14 + LETTER_WIDTH * text.length, y + 3.5, fmt.prob(p));
