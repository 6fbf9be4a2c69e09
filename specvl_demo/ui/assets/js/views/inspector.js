/* Draws where one token comes from: its round and depth, why it is there, what else was likely (records/inspected.js), and
   the heat of the picture's patches. */

import { backCloses } from './back.js';
import { button, h, headRow, icon, iconButton, refill, scrolls, tableRow } from './dom.js';
import { term } from './explain.js';
import { PHASES, countDrafted, countKept, depths } from '../records/fold.js';
import {
  chancesOf,
  drawOf,
  likeliest,
  noted,
  whyUnused,
  whyWritten,
} from '../records/inspected.js';
import { tokenChip } from './lane.js';
import { sight } from './patches.js';
import { ENDS, withEndMark, shown, wordOf } from '../records/text.js';
import { W, fmt } from '../words/words.js';

const hint = () => h('p.vl-hint', W.inspect.hint);

export class Inspector {
  over = false; // it lies over the page as a sheet

  /** names: what methods call their notes. */
  constructor(race, painter, names) {
    this.race = race;
    this.names = names;
    this.head = h('div.vl-inspect-head');
    this.body = h('div.vl-inspector-body', scrolls(W.inspect.title));
    const leave = () => race.select(null);
    const close = iconButton('close', W.inspect.close, leave, 'vl-tool vl-sheet-close');
    this.node = h(
      'section.vl-card.vl-inspector',
      { 'aria-label': W.inspect.title },
      h('header', h('h2', W.inspect.title), this.head, close),
      this.body,
    );
    document.addEventListener('keydown', (e) => this.key(e));
    this.back = backCloses(leave);
    race.on('reset select focus', () => painter.now(this.draw));
    race.on('head round', () => painter.affordably(this.draw));
    this.draw();
  }

  /** Open the sheet, which it is on a small screen, or close it. */
  openSheet() {
    const over = Boolean(this.node.getClientRects().length && this.node.offsetParent === null);
    if (over === this.over) return;
    this.over = over;
    this.back[over ? 'opened' : 'closed']();
  }

  /** Escape closes the sheet, Tab leads from the answer into it, Shift+Tab back. */
  key(event) {
    if (!this.over) return;
    const now = document.activeElement;
    /** @type {HTMLElement | null} */
    const text = document.querySelector('.vl-lane.focused .vl-text');
    const first = this.node.querySelector('button:not(:disabled)');
    const within = this.node.contains(now);
    if (event.key === 'Escape') {
      this.race.select(null);
      if (within) text?.focus();
      return;
    }
    if (event.key !== 'Tab' || now !== (event.shiftKey ? first : text)) return;
    event.preventDefault();
    (event.shiftKey ? text : first)?.focus();
  }

  draw = () => {
    const { race } = this;
    const { focused: lane, selected } = race;
    const picked = Boolean(selected?.picked);
    this.node.classList.toggle('picked', picked);
    // A screen reader hears what the visitor chose, not what streams by.
    this.head.ariaLive = picked ? 'polite' : null;
    this.openSheet();
    const going = !selected && lane && race.currentRound;
    const open = Boolean(going && race.making(lane)?.round === going);
    if (going && going === this.going && open === this.open) return;
    this.going = going;
    this.open = open;
    const round = going && (open ? this.roundGoing(going) : this.round(lane, going));
    const parts = round ? [...round, hint()] : this.selection(lane, selected);
    if (parts) refill(this.body, parts);
  };

  // What follows writes the heading, and returns the body.

  /** null leaves what is there. */
  selection(lane, selected) {
    if (!selected || !lane) {
      this.head.replaceChildren();
      return [hint()];
    }
    const { token, node } = selected;
    if (token !== undefined) return lane.tokens[token] ? this.token(lane, token) : null;
    const round = lane.rounds[selected.round];
    return node === undefined ? this.round(lane, round) : this.unusedNode(lane, round, node);
  }

  writeRoundHead({ index }, facts) {
    this.head.replaceChildren(h('b', W.inspect.round(index)), h('span', facts));
  }

  /** Its result is not shown yet. */
  roundGoing(round) {
    this.writeRoundHead(round, W.inspect.roundGoing(countDrafted(round)));
    return [];
  }

  round(lane, round) {
    if (!round) return [hint()];
    const first = lane.first(round);
    const facts = [countDrafted(round), countKept(round), fmt.seconds(round.clock_s)];
    this.writeRoundHead(round, W.inspect.roundFacts(...facts));
    const chips = round.tokens.map((token, i) => {
      const text = lane.said(first + i);
      const label = W.inspect.open(shown(text));
      return this.opener(lane, first + i, tokenChip(text, token.origin), label);
    });
    const notes = noteList(noted(lane, round, this.names));
    return [h('p.vl-chips', chips), phaseTimes(round), notes];
  }

  token(lane, token) {
    const { at, id, round: index, ...own } = lane.tokens[token];
    const round = lane.rounds[index];
    const move = (step, sign, name) => {
      const go = () => this.race.pick(lane, { token: token + step });
      const disabled = !lane.tokens[token + step];
      return button(sign, go, 'vl-small', { 'aria-label': name, disabled });
    };
    const text = lane.said(token);
    this.head.replaceChildren(
      (text === ENDS ? endMark : tokenChip)(text, lane.kind(own)),
      h('span', W.inspect.place(token, index, at + 1)),
      move(-1, '‹', W.inspect.previous),
      move(1, '›', W.inspect.next),
    );
    const node = round.path[at + 1];
    const draw = drawOf(round, at);
    const known = (x, write) => (x === null ? null : write(x));
    const draws =
      draw && W.inspect.draws(known(draw.gap, fmt.number), known(draw.overlap, fmt.percent));
    const parts = [
      this.characterParts(lane, token),
      probabilityBars(draw ?? chancesOf(round, node), draws),
      this.candidates(lane, round, round.path[at], id, token),
    ];
    return this.explained(lane, round, node, at, whyWritten(lane, token), parts);
  }

  /** at: the place in the round. */
  explained(lane, round, node, at, why, parts) {
    const words = h('div.vl-inspect-words', h('p.vl-why', why), parts);
    const grid = h('div.vl-inspect-grid', words, sight(this.race, lane, round, at));
    return [grid, phaseTimes(round), noteList(noted(lane, round, this.names, node))];
  }

  unusedNode(lane, round, node) {
    const { tree, index } = round;
    const { kind, why, at } = whyUnused(lane, round, node);
    const chip = `code.tk.chip.${kind === 'rejected' ? kind : 'idle'}`;
    const facts = W.inspect.fallen(W.inspect.kinds[kind], index, depths(tree)[node]);
    this.head.replaceChildren(h(chip, wordOf(tree, node)), h('span', facts));
    const place = at < 0 ? null : lane.first(round) + at;
    const parts = node > 0 && [
      probabilityBars(chancesOf(round, node)),
      this.candidates(lane, round, tree.parent[node], tree.tokens[node], place),
    ];
    return this.explained(lane, round, node, at, why, parts);
  }

  opener(lane, token, chip, label, now = null) {
    const click = () => this.race.pick(lane, { token });
    const current = token === now ? 'true' : null;
    return h(
      'button.vl-plainbutton',
      { 'aria-label': label, 'aria-current': current, click },
      chip,
    );
  }

  /** The tokens that form a character together with this one; null if it forms one by itself. */
  characterParts(lane, token) {
    const piece = lane.pieces[lane.tokens[token].piece];
    if (!piece || piece.stop - piece.start < 2) return null;
    const { start, stop, text } = piece;
    const chip = (own, i) => {
      const code = tokenChip(own.text || `#${own.id}`, lane.kind(own));
      const label = W.inspect.part(i + 1, W.origins[own.origin]);
      return this.opener(lane, start + i, code, label, token);
    };
    const told = h('span.vl-hint', W.inspect.parts(shown(text), stop - start));
    return h('p.vl-chips', told, lane.tokens.slice(start, stop).map(chip));
  }

  /** What was likely after `node`. place: in the answer of the token `id`, null if it is none of it. */
  candidates(lane, round, node, id, place) {
    const found = likeliest(round, node, id);
    if (!found) return h('p.vl-hint', W.inspect.light);
    return candidateTable(found, id, (row) => this.candidate(lane, row, place));
  }

  /** A likely token: a button that branches to it, if the question can be asked again. */
  candidate(lane, { id, text }, index) {
    const word = shown(text);
    const code = h('code', { title: word }, word);
    const { ended, selected, meta } = this.race;
    const open = selected?.picked && meta.asked && !meta.gone && ended;
    if (!open || index === null || id === lane.tokens[index].id || withEndMark(text) !== text)
      return code;
    const title = W.branch.take(word);
    const click = () => this.race.emit('branch', { lane, index, id, text });
    const props = { 'aria-label': title, title, click };
    return h('button.vl-plainbutton.vl-take', props, code, icon('branch', 12));
  }
}

function endMark(text, origin) {
  const node = term(text, W.lane.end, `tk chip ${origin}`);
  node.title = W.lane.end;
  return node;
}

const width = (p) => ({ style: { width: `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%` } });

/** Of those that are known; null where none is. */
function probabilityBars({ target, drafter }, sentence = '') {
  const bar = ([name, p]) =>
    h('div.vl-draw', h('span', name), h('i', h('b', width(p))), h('span', fmt.prob(p)));
  const known = [
    [W.views.target, target],
    [W.inspect.drafter, drafter],
  ].filter(([, p]) => p !== null);
  return known.length
    ? h('div.vl-draws', known.map(bar), sentence && h('p.vl-help', sentence))
    : null;
}

/** id: of the token that is inspected; word(row): how a candidate is shown. */
function candidateTable({ columns, rows }, id, word) {
  const cell = (p) =>
    p === undefined ? h('td', h('span', '·')) : h('td', h('i', width(p)), h('span', fmt.prob(p)));
  const line = (row) => {
    const cells = columns.map((column) => cell(row.prob.get(column)));
    return tableRow(word(row), cells, { class: row.id === id ? 'chosen' : null });
  };
  const views = columns.map((column) => W.views[column] ?? column);
  const caption = h('caption.vl-hidden', W.inspect.candidates);
  const head = headRow([W.inspect.candidate, ...views]);
  return h('table.vl-candidates', caption, head, h('tbody', rows.map(line)));
}

function phaseTimes(round) {
  const time = (phase) => {
    const sign = h('i', { class: `phase ${phase.slice(0, -2)}` });
    return h('span', sign, `${W.phases[phase]} ${fmt.seconds(round[phase])}`);
  };
  return h('p.vl-times', { title: W.track.whereHelp }, PHASES.map(time));
}

/** notes: each [name, value, reason]. */
function noteList(notes) {
  const line = ([name, value, why]) => [h('dt', name), h('dd', value, why && ` (${why})`)];
  return notes.length ? h('dl.vl-notes', notes.flatMap(line)) : null;
}
