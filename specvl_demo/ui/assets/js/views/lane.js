/* One lane's answer as far as it is shown, piece by piece, coloured by origin. */

import { button, h, put, refill, term } from './dom.js';
import { countKept, rejected } from '../records/fold.js';
import { MOST_TEXT, laid, withEndMark, shown } from '../records/text.js';
import { instead, winner } from '../records/looks.js';
import { differences } from '../records/verdict.js';
import { W } from '../words/words.js';

const SERIES_COLOURS = 6;

/** How sure it is that the answer is AR's. In single precision rounding changed no token: no badge. */
function guaranteeBadge({ lossless, exactness, dtype, models }) {
  if (!lossless) return term(W.lane.lossy, W.lane.lossyHelp, 'vl-badge lossy');
  const [weights] = /\b\d-bit weights/.exec(models.target ?? '') ?? [];
  if (exactness === 'exact')
    return term(W.lane.exact, W.lane.exactHelp(dtype, weights), 'vl-badge');
  const rounded = exactness && dtype !== 'float32';
  return rounded ? term(W.lane.nearly, W.lane.nearlyHelp(dtype), 'vl-badge') : null;
}

/** The drafts along the judged line, the accepted first. */
export function judgedDrafts(round) {
  const { path, tokens, tree } = round;
  const kept = path.slice(1).map((node, i) => [node, tokens[i].origin]);
  const fell = rejected(round).map((node, i) => [node, i ? 'after' : 'rejected']);
  const text = (node) => laid(withEndMark(tree.texts?.[node] ?? '·'));
  return [...kept, ...fell].map(([node, kind]) => ({ text: text(node), kind }));
}

export class LaneView {
  nodes = []; // an element a piece

  constructor(race, lane, painter) {
    this.race = race;
    this.lane = lane;
    this.painter = painter;
    const { number, plain, title } = lane;
    const silent = { 'aria-hidden': 'true' };
    this.given = h('span.vl-given', { title: W.branch.given });
    this.text = h('span.vl-said');
    this.guess = h('span.vl-guess', silent);
    this.full = h('div.vl-full', silent);
    this.promise = h('span.vl-promise');
    this.note = h('span.vl-lane-note');
    this.chip = button(title, () => race.setFocus(lane.name));
    this.title = term(title, plain ? W.lane.plainHelp : '');
    const piece = ({ target }) => target.closest('[data-i]');
    const props = {
      ...{ tabindex: '0', role: 'log', 'aria-live': 'off', label: W.lane.answer(title) },
      click: (e) => this.pick(piece(e)),
      keydown: (e) => this.key(e),
      pointerover: (e) => this.hover(piece(e)),
      pointerleave: () => this.hover(null),
    };
    const words = h('div.vl-words', this.given, this.text, this.guess);
    // The newest words stay in view by layout alone: the box scrolls from its bottom.
    this.box = h(plain ? 'div.vl-text.plain' : 'div.vl-text', props, this.full, words);
    const name = h('span.vl-lane-name', h('i.vl-swatch'), this.title);
    const head = h('header', name, this.promise, this.note);
    this.node = h('section.vl-lane', { data: { lane: number } }, head, this.box);
    this.begun();
  }

  begun() {
    refill(this.promise, [!this.lane.plain && guaranteeBadge(this.lane.begin)]);
    put(this.given, laid(this.lane.given.text, MOST_TEXT));
    this.mark();
  }

  update(asked = false) {
    this.painter[asked ? 'now' : 'soon'](this.draw);
  }

  draw = () => {
    this.writePieces(this.lane.whole[this.race.roundsShown(this.lane)]);
    this.guesses();
    this.mark();
  };

  /** What is drafted is pale until it is verified, then accepted or struck out. */
  guesses() {
    const { round, drafted, verified } = (!this.lane.plain && this.race.making(this.lane)) || {};
    const word = ({ text, kind }) => h('span.tk', { data: { kind } }, text);
    if (this.guessed !== round) refill(this.guess, round ? judgedDrafts(round).map(word) : []);
    this.guessed = round;
    const all = [...this.guess.children];
    all.forEach((node, i) => {
      const place = (i + 1) / all.length;
      node.hidden = place > drafted + 1e-9;
      node.className = `tk ${place <= verified ? node.dataset.kind : 'guess'}`;
    });
  }

  /** So many and no more: a replay also goes back. What is written stays, so that nothing is laid out twice. */
  writePieces(want) {
    const { lane, nodes, text } = this;
    nodes.splice(want);
    while (text.lastChild !== (nodes.at(-1) ?? null)) text.lastChild.remove();
    for (const piece of lane.pieces.slice(nodes.length, want)) {
      const node = this.piece(piece);
      text.append(...this.rejectedText(piece), node);
      nodes.push(node);
    }
  }

  piece({ start, stop, text, mixed, round: r, ...piece }) {
    const { lane } = this;
    const { plain } = lane;
    const tokens = lane.tokens.slice(start, stop);
    const { at, round } = tokens.at(-1);
    const other = instead(lane.rounds[round], at);
    const by = winner(lane, lane.rounds[round], at);
    const kinds = [lane.kind(piece), mixed && !plain && 'mixed', text === '' && 'end', by && 'by'];
    const title = [
      text === '' && W.lane.end,
      tokens.length > 1 && !plain && W.lane.parts(tokens.map((one) => W.origins[one.origin])),
      other !== null && W.lane.instead(shown(other)),
      by && W.lane.by(W.views[by.view] ?? by.view),
    ];
    const written = other !== null && { instead: other.trim() || shown(other) };
    const props = {
      data: { i: start, n: stop - start, r, ...written },
      style: by ? { '--by': `var(--vl-series-${by.place % SERIES_COLOURS})` } : {},
      title: title.filter(Boolean).join('; ') || null,
    };
    return h(['span', 'tk', ...kinds.filter(Boolean)].join('.'), props, laid(text));
  }

  /** Drafts in whose place the target wrote a piece, struck through. */
  rejectedText({ start, stop }) {
    const { plain, rounds, tokens } = this.lane;
    const title = W.learn.origins.rejected;
    const struck = ({ origin, round }) => {
      const own = rounds[round];
      if (origin !== 'target' || !own.tree.texts) return [];
      const fell = judgedDrafts(own).slice(countKept(own));
      const word = ({ text, kind }) =>
        h(`del.tk.${kind}`, { title }, kind === 'after' ? text : text.trim() || shown(text));
      return fell.map(word);
    };
    return plain ? [] : tokens.slice(start, stop).flatMap(struck);
  }

  /** null while the token's character waits for the rest of it. */
  nodeOf(token) {
    return this.nodes[this.lane.tokens[token]?.piece] ?? null;
  }

  /** Show selection, colours and end. */
  mark() {
    const { race, lane, node, box } = this;
    this.chip.ariaPressed = node.classList.toggle('focused', race.focus === lane.name);
    const selected = race.selected?.lane === lane.name ? race.selected : null;
    this.picked?.classList.remove('selected');
    this.picked = this.nodeOf(selected?.token);
    this.picked?.classList.add('selected');
    this.lightRound(selected?.round ?? lane.tokens[selected?.token]?.round ?? null);
    node.classList.toggle('waiting', !lane.rounds.length && !lane.end);
    const { ended } = race;
    node.classList.toggle('done', ended);
    put(this.full, ended ? laid(lane.given.text, MOST_TEXT) + lane.laid : '');
    // A replay goes along with the newest words.
    const { clientHeight, scrollHeight } = box;
    const longer = ended && race.head !== null && scrollHeight > clientHeight + 4;
    const newest = longer && this.nodes.at(-1);
    if (newest) box.scrollTop = newest.offsetTop - clientHeight + 48;
    node.dataset.colour = lane.colour;
    put(this.title, lane.title);
    this.title.title = lane.begin.title;
    put(this.note, this.ending());
    this.compare();
  }

  /** Mark where this answer and AR's differ, once both are complete; shade what AR's shares with the one in focus. */
  compare() {
    const { race, lane } = this;
    const base = race.baseline;
    const own = lane === base;
    const against = own ? race.focused : lane;
    const name = (race.finished && race.meta.compared && against?.name) || null;
    if (name === this.compared) return;
    this.compared = name;
    const found = name && differences(race, against);
    this.nodes.forEach((node, p) => {
      const { start, stop } = lane.pieces[p];
      const differs = Boolean(found?.[own ? 'base' : 'other'].has(stop - 1));
      node.classList.toggle('other', differs);
      node.classList.toggle('shared', own && start < (found?.shared ?? 0));
      if (differs) node.title = W.lane.other((own ? against : base).title);
    });
  }

  /** How the lane ended, in words; '' until then. */
  ending() {
    const { lane, race } = this;
    if (!race.over(lane)) return '';
    if (lane.end.stop === 'error') return lane.end.message ?? W.stop.error;
    const relaxed = race.now(lane).n_relaxed;
    return [relaxed && W.lane.relaxed(relaxed), W.stop[lane.end.stop]].filter(Boolean).join(' · ');
  }

  /** Mark the words that one round wrote. */
  lightRound(round) {
    if (round === this.lit) return;
    this.lit = round;
    for (const { classList, dataset } of this.nodes)
      classList.toggle('same', dataset.r === String(round));
  }

  hover(node) {
    if (this.race.selected?.lane === this.lane.name) return;
    this.lightRound(node && !this.lane.plain ? Number(node.dataset.r) : null);
  }

  /** Of a piece of several tokens the last one, which completed it. */
  pick(node) {
    if (!node) return;
    const { i, n } = node.dataset;
    this.race.pick(this.lane, { token: Number(i) + Number(n) - 1 });
  }

  /** Arrows, Home and End walk through the tokens, Escape lets go. */
  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const { lane, race } = this;
    const last = (lane.pieces[this.nodes.length - 1]?.stop ?? 0) - 1;
    if (event.key === 'Escape') race.select(null);
    else if (step === undefined || last < 0) return;
    else {
      const own = race.selected?.lane === lane.name ? race.selected.token : undefined;
      const token = Math.min(last, Math.max(0, (own ?? (step > 0 ? -1 : 0)) + step));
      race.pick(lane, { token });
      this.nodeOf(token)?.scrollIntoView({ block: 'nearest' });
    }
    event.preventDefault();
  }
}

/** What the colours of texts mean. */
export const legendOf = (origins) =>
  origins.map((origin) =>
    h(`span.tk.${origin}`, { title: W.learn.origins[origin] }, W.legend[origin]),
  );

export const tokenChip = (text, origin) => h(`code.tk.chip.${origin}`, shown(text));
