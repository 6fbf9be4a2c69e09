/* Where one token comes from: its round and depth, why it is there, which tokens the target and
   every view of the drafter found likely, and the heat of the picture's patches. Given a race and
   its selection; draws nothing else. */

import { backCloses } from './back.js';
import { button, h, headRow, icon, iconButton } from './dom.js';
import { term } from './explain.js';
import { PHASES, children, depths, fallen, reason } from '../records/fold.js';
import { tokenChip } from './lane.js';
import { sight } from './patches.js';
import { ENDS, marked, probability, shown, wordOf } from '../records/text.js';
import { fmt } from '../words/numbers.js';
import { W } from '../words/words.js';

const MOST_ROWS = 8;

export class Inspector {
  /** names: what methods call their notes. */
  constructor(race, painter, names) {
    this.race = race;
    this.names = names;
    this.head = h('div.vl-inspect-head');
    // Where it is higher than its card, a keyboard scrolls it.
    const scrolls = { tabindex: '0', role: 'group', 'aria-label': W.inspect.title };
    this.body = h('div.vl-inspector-body', scrolls);
    this.node = h(
      'section.vl-card.vl-inspector',
      { 'aria-label': W.inspect.title },
      h(
        'header',
        h('h2', W.inspect.title),
        this.head,
        iconButton(
          'close',
          W.inspect.close,
          () => this.race.select(null),
          'vl-tool vl-sheet-close',
        ),
      ),
      this.body,
    );
    document.addEventListener('keydown', (e) => this.key(e));
    this.over = false; // whether it lies over the page as a sheet
    this.back = backCloses(() => race.select(null));
    this.draw = this.draw.bind(this);
    race.on('reset select focus', () => painter.now(this.draw));
    race.on('head round', () => painter.affordably(this.draw));
    this.draw();
  }

  /** On a small screen, a token that is picked opens a sheet over the page. */
  cover() {
    const over = Boolean(this.node.getClientRects().length && this.node.offsetParent === null);
    if (over === this.over) return;
    this.over = over;
    if (over) this.back.opened();
    else this.back.closed();
  }

  /** Of the sheet: Escape closes it, Tab leads from the answer into it, and Shift+Tab back. */
  key(event) {
    if (!this.over) return;
    const within = this.node.contains(document.activeElement);
    const text = document.querySelector('.vl-lane.focused .vl-text');
    const first = this.node.querySelector('button:not(:disabled)');
    if (event.key === 'Escape') {
      this.race.select(null);
      if (within) text?.focus();
    } else if (event.key === 'Tab' && !event.shiftKey && document.activeElement === text) {
      event.preventDefault();
      first.focus();
    } else if (event.key === 'Tab' && event.shiftKey && document.activeElement === first) {
      event.preventDefault();
      text?.focus();
    }
  }

  draw() {
    const { race } = this;
    const s = race.selected;
    const lane = race.focused;
    this.node.classList.toggle('picked', Boolean(s?.picked));
    // A screen reader hears what the visitor chose, not what streams by.
    if (s?.picked) this.head.setAttribute('aria-live', 'polite');
    else this.head.removeAttribute('aria-live');
    this.cover();
    const going = !s && lane && race.currentRound;
    const open = Boolean(going && race.making(lane)?.round === going);
    if (going && going === this.going && open === this.open) return;
    this.going = going;
    this.open = open;
    if (going) {
      this.body.replaceChildren(
        ...(open ? this.opening(going) : this.round(lane, going)),
        h('p.vl-hint', W.inspect.hint),
      );
      return;
    }
    if (!s || !lane) {
      this.head.replaceChildren();
      this.body.replaceChildren(h('p.vl-hint', W.inspect.hint));
      return;
    }
    if (s.token === undefined) {
      const picked = lane.rounds[s.round];
      const parts =
        s.node === undefined ? this.round(lane, picked) : this.drafted(lane, picked, s.node);
      this.body.replaceChildren(...parts);
      return;
    }
    const token = lane.tokens[s.token];
    const round = token && lane.rounds[token.round];
    if (!round) return;
    this.body.replaceChildren(...this.token(lane, round, token, s.token));
  }

  /** A round in progress: its result is not shown yet. */
  opening(round) {
    this.head.replaceChildren(
      h('b', W.inspect.round(round.index)),
      h('span', W.inspect.roundGoing(round.tree.tokens.length - 1)),
    );
    return [];
  }

  /** A whole round: its tokens, its seconds, its notes. */
  round(lane, round) {
    if (!round) return [h('p.vl-hint', W.inspect.hint)];
    const first = lane.at(round.index).n_tokens;
    const [drafted, kept] = [round.tree.tokens.length - 1, round.path.length - 1];
    const facts = W.inspect.roundFacts(drafted, kept, fmt.seconds(round.clock_s));
    this.head.replaceChildren(h('b', W.inspect.round(round.index)), h('span', facts));
    const chips = round.tokens.map((t, i) => {
      const text = lane.said(first + i);
      const chip = tokenChip(text, t.origin);
      return this.opener(lane, first + i, chip, W.inspect.open(shown(text)));
    });
    const notes = this.notes(round.notes);
    return [h('p.vl-chips', chips), this.times(round), notes].filter(Boolean);
  }

  token(lane, round, token, index) {
    const n = lane.at(Infinity).n_tokens;
    const move = (step) => {
      const go = () => this.race.select({ lane: lane.name, token: index + step, picked: true });
      const name = step < 0 ? W.inspect.previous : W.inspect.next;
      const disabled = index + step < 0 || index + step >= n;
      return button(step < 0 ? '‹' : '›', go, 'vl-small', { 'aria-label': name, disabled });
    };
    const origin = lane.begin.method === 'ar' ? 'ar' : token.origin;
    const text = lane.said(index);
    this.head.replaceChildren(
      text === ENDS ? endMark(origin) : tokenChip(text, origin),
      h('span', W.inspect.place(index, round.index, token.at + 1)),
      move(-1),
      move(1),
    );
    const node = round.path[token.at + 1];
    const why = this.why(lane, round, token, index);
    const parts = [
      this.parts(lane, token, index),
      this.chance(round, token) ?? this.chances(round, node),
      this.candidates(lane, round, round.path[token.at], token.id, index),
    ];
    return this.explained(lane, round, why, parts, node, token.at);
  }

  /** Why a node is where it is, and what its round adds; beside it the pictures. at: its place in the answer's round. */
  explained(lane, round, why, parts, node, at) {
    const more = [this.times(round), this.notes(round.notes, node)];
    const words = h('div.vl-inspect-words', h('p.vl-why', why), parts, more);
    return [h('div.vl-inspect-grid', words, sight(this.race, lane, round, at))];
  }

  /** A node of the tree that is no token of the answer: a draft that was not kept, or the token before the round. */
  drafted(lane, round, node) {
    const { tree, path, tokens, candidates } = round;
    const text = wordOf(tree, node);
    const depth = depths(tree)[node];
    const head = (kind, of) =>
      this.head.replaceChildren(
        h('code', { class: `tk chip ${of}`, text }),
        h('span', W.inspect.fallen(W.inspect.kinds[kind], round.index, depth)),
      );
    if (node === 0) {
      head('root', 'idle');
      return this.explained(lane, round, W.tree.root(text), [], node, -1);
    }
    const { lost, at } = fallen(round, node);
    const token = tokens[at];
    const kind = !token ? 'ended' : lost === node ? 'rejected' : 'after';
    head(kind, kind === 'rejected' ? kind : 'idle');
    const index = lane.at(round.index).n_tokens + at;
    const written = token && shown(lane.said(index));
    const relaxed = token?.origin === 'relaxed' && written;
    const top = candidates?.[at]?.[0];
    const own = !relaxed ? written : top ? shown(top.text) : W.fallen.another;
    const why = W.fallen[kind]({
      text,
      p: probability(tree.draft_logp, node),
      lost: wordOf(tree, lost),
      own,
      ownP: top && fmt.prob(top.prob),
      relaxed,
      sampled: sampled(lane),
    });
    const here = kind === 'rejected' ? index : null; // the place is one of the answer
    const parts = [
      this.chances(round, node),
      this.candidates(lane, round, tree.parent[node], tree.tokens[node], here),
    ];
    return this.explained(lane, round, why, parts, node, here === null ? -1 : at);
  }

  /** A token's chip, which opens it. now: the token that is open. */
  opener(lane, token, chip, label, now = null) {
    const current = token === now ? 'true' : null;
    const click = () => this.race.select({ lane: lane.name, token, picked: true });
    const more = { 'aria-label': label, 'aria-current': current, on: { click } };
    return h('button.vl-plainbutton', { ...more }, chip);
  }

  /** The tokens that form one character together with this one; null if it forms one by itself. */
  parts(lane, token, index) {
    const piece = lane.pieces[token.piece];
    if (!piece || piece.stop - piece.start < 2) return null;
    const plain = lane.begin.method === 'ar';
    const { start, stop, text } = piece;
    const chip = ({ id, text: own, origin }, i) => {
      const code = tokenChip(own || `#${id}`, plain ? 'ar' : origin);
      return this.opener(lane, start + i, code, W.inspect.part(i + 1, W.origins[origin]), index);
    };
    const told = h('span.vl-hint', W.inspect.parts(shown(text), stop - start));
    return h('p.vl-chips', told, lane.tokens.slice(start, stop).map(chip));
  }

  why(lane, round, token, index) {
    const top = round.candidates?.[token.at]?.[0];
    const node = round.path[token.at + 1];
    const p = token.origin === 'target' ? null : probability(round.tree.draft_logp, node);
    return W.why[reason(round, token.at)]({
      text: shown(lane.said(index)),
      p,
      sampled: sampled(lane),
      top: top && shown(top.text),
      topP: top && fmt.prob(top.prob),
      drafted: round.tree.tokens.length - 1,
      kept: round.path.length - 1,
    });
  }

  /** If the token was sampled: its probability in the target's and in the drafter's distribution,
   *  and how close the second token came. Null if the record lacks it. */
  chance(round, token) {
    const { draws } = round.notes;
    const at = (name) =>
      Array.isArray(draws?.[name]) && Number.isFinite(draws[name][token.at])
        ? draws[name][token.at]
        : null;
    const p = at('p');
    if (p === null) return null;
    const known = (x, write) => (x === null ? null : write(x));
    const [gap, overlap] = [at('gap'), at('overlap')];
    return h(
      'div.vl-draws',
      bar(W.views.target, p),
      bar(W.inspect.drafter, at('q')),
      h('p.vl-help', W.inspect.draws(known(gap, fmt.number), known(overlap, fmt.percent))),
    );
  }

  /** What the target and the drafter give a drafted node; null if neither is recorded. */
  chances({ tree }, node) {
    const of = (list) => (list?.[node] == null ? null : Math.exp(list[node]));
    const [target, drafter] = [of(tree.target_logp), of(tree.draft_logp)];
    if (target === null && drafter === null) return null;
    return h('div.vl-draws', bar(W.views.target, target), bar(W.inspect.drafter, drafter));
  }

  /** Candidates of the target and of every view for the place after `node`, one row a token, and what was drafted there;
   *  off the accepted path the record has only that. id: the token that was picked. index: the place in the answer, null if
   *  it is none of it. */
  candidates(lane, round, node, id, index) {
    const at = round.path.indexOf(node);
    const target = round.candidates?.[at] ?? [];
    const views = Object.entries(round.views ?? {})
      .filter(([, lists]) => lists[at])
      .map(([name, lists]) => [name, lists[at]]);
    const drafted = siblings(round, node);
    if (!views.length && drafted.length) views.push([W.inspect.drafter, drafted]);
    if (!target.length && !views.some(([, list]) => list.length))
      return h('p.vl-hint', W.inspect.light);
    const judged = drafted.filter((one) => one.target !== null);
    const seen = judged.map((one) => ({ ...one, prob: one.target }));
    const rows = new Map();
    for (const [column, list] of [['target', seen], ['target', target], ...views]) {
      for (const c of list) {
        if (!rows.has(c.id)) rows.set(c.id, { id: c.id, text: c.text, prob: new Map() });
        rows.get(c.id).prob.set(column, c.prob);
      }
    }
    const columns = ['target', ...views.map(([name]) => name)];
    const most = (row) => (row.id === id ? 1 : Math.max(...row.prob.values()));
    const own = (row) => row.prob.get('target') ?? 0;
    const sorted = [...rows.values()]
      .sort((a, b) => most(b) - most(a))
      .slice(0, MOST_ROWS)
      .sort((a, b) => own(b) - own(a) || most(b) - most(a));
    const line = (row) =>
      h(
        'tr',
        { class: row.id === id ? 'chosen' : null },
        h('th', { scope: 'row' }, this.candidate(lane, row, index)),
        columns.map((c) => cell(row.prob.get(c))),
      );
    return h(
      'table.vl-candidates',
      h('caption.vl-hidden', W.inspect.candidates),
      headRow([W.inspect.candidate, ...columns.map((c) => W.views[c] ?? c)]),
      h('tbody', sorted.map(line)),
    );
  }

  /** A candidate's text. If the question can be asked again, the candidate can replace the token that was written, once
   *  a visitor looks at it. */
  candidate(lane, { id, text }, index) {
    const code = h('code', { title: shown(text), text: shown(text) });
    const { selected, meta, list } = this.race;
    const open = selected?.picked && meta.asked && !meta.gone && list.every((one) => one.end);
    if (!open || index === null || id === lane.tokens[index].id || marked(text) !== text)
      return code;
    const title = W.branch.take(shown(text));
    const click = () => this.race.emit('branch', { lane, index, id, text });
    const more = { 'aria-label': title, title, on: { click } };
    return h('button.vl-plainbutton.vl-take', more, code, icon('branch', 12));
  }

  times(round) {
    const part = (phase) => {
      const sign = h('i', { class: `phase ${phase.slice(0, -2)}` });
      return h('span', sign, `${W.phases[phase]} ${fmt.seconds(round[phase])}`);
    };
    return h('p.vl-times', { title: W.track.whereHelp }, PHASES.map(part));
  }

  /** The method's own notes; of lists over drafted nodes only the value of `node`. */
  notes(notes, node = null) {
    const at = Array.isArray(notes.nodes) ? notes.nodes.indexOf(node) : -1;
    const over = (value) =>
      Array.isArray(value) && Array.isArray(notes.nodes) && value.length === notes.nodes.length;
    const names = { ...charted(this.race.focused), ...this.names };
    const rows = Object.entries(notes)
      .filter(([key]) => Object.hasOwn(names, key))
      .map(([key, value]) => [key, node !== null && over(value) ? value[at] : value])
      .filter(([, value]) => value !== undefined);
    if (!rows.length) return null;
    const why = notes.why ?? {};
    return h(
      'dl.vl-notes',
      rows.flatMap(([key, value]) => [
        h('dt', names[key]),
        h('dd', brief(value), why[key] && ` (${why[key]})`),
      ]),
    );
  }
}

/** What was drafted after a node: [{id, text, prob, target: its probability, null if unknown}]. */
function siblings({ tree }, parent) {
  if (!tree.draft_logp || !tree.texts) return [];
  return (children(tree)[parent] ?? []).map((node) => ({
    id: tree.tokens[node],
    text: tree.texts[node],
    prob: Math.exp(tree.draft_logp[node]),
    target: tree.target_logp?.[node] == null ? null : Math.exp(tree.target_logp[node]),
  }));
}

const sampled = (lane) => Number(lane.begin.sampling.temperature) > 0;

/** A named probability as a bar; nothing if it is unknown. */
function bar(name, x) {
  if (x === null) return '';
  const width = `${(100 * Math.min(1, Math.max(0, x))).toFixed(1)}%`;
  return h(
    'div.vl-draw',
    h('span', name),
    h('i', h('b', { style: { width } })),
    h('span', fmt.prob(x)),
  );
}

/** What a method's own charts call the notes that they draw. */
function charted(lane) {
  const series = lane.begin.charts.flatMap((chart) => chart.series);
  const own = series.filter(({ path, name }) => name && /^notes\.\w+$/.test(path));
  return Object.fromEntries(own.map(({ path, name }) => [path.slice('notes.'.length), name]));
}

/** The mark of the end of an answer, which says what it means. */
function endMark(origin) {
  const node = term(ENDS, W.lane.end, `tk chip ${origin}`);
  node.title = W.lane.end;
  return node;
}

function brief(value) {
  if (typeof value === 'number') return Number.isInteger(value) ? String(value) : value.toFixed(3);
  if (Array.isArray(value))
    return value.length > 16
      ? `${value.slice(0, 16).map(brief).join(' ')} …`
      : value.map(brief).join(' ');
  if (typeof value === 'boolean') return value ? W.settings.on : W.settings.off;
  if (value && typeof value === 'object')
    return Object.entries(value)
      .map(([k, v]) => `${W.views[k] ?? k} ${brief(v)}`)
      .join(' · ');
  return String(value);
}

/** A probability as a bar with its number; a dot if it is unknown. */
function cell(p) {
  return h(
    'td',
    p !== undefined && h('i', { style: { width: `${(100 * p).toFixed(1)}%` } }),
    h('span', p === undefined ? '·' : fmt.prob(p)),
  );
}
