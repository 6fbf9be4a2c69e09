/* Where a token comes from: its round, why, what else was likely, what the drafter saw. */

import { backCloses } from './back.js';
import {
  button,
  h,
  headRow,
  icon,
  iconButton,
  refill,
  scrolls,
  tableRow,
  term,
  toggleCard,
} from './dom.js';
import { PHASES, countDrafted, countKept, depths, rejected } from '../records/fold.js';
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

/** names: what methods call their notes. */
export function inspector(race, painter, names) {
  const head = h('div.vl-inspect-head');
  const body = h('div.vl-inspector-body', scrolls(W.inspect.title));
  const leave = () => race.select(null);
  const close = iconButton('close', W.inspect.close, leave, 'vl-tool vl-sheet-close');
  const header = h('header', h('h2', W.inspect.title), head, close);
  const node = h('section.vl-card.vl-inspector', { label: W.inspect.title }, header, body);
  const showSheet = sheet(race, node);
  let told = []; // the round in progress, and whether it is open

  const draw = () => {
    const { focused: lane, selected } = race;
    const picked = Boolean(selected?.picked);
    node.classList.toggle('picked', picked);
    // Screen readers hear what the visitor chose, not what streams by.
    head.ariaLive = picked ? 'polite' : null;
    showSheet();
    const current = !selected && lane && race.currentRound;
    const open = Boolean(current && race.making(lane)?.round === current);
    // A replay asks for this in every frame.
    if (current && current === told[0] && open === told[1]) return;
    told = [current, open];
    const context = { race, lane, names };
    const parts = current ? aboutRound(context, current, open) : aboutSelected(context);
    if (!parts) return;
    refill(head, parts.head);
    refill(body, current ? [...parts.body, hint()] : parts.body);
  };
  painter.followRound(race, draw);
  draw();
  return node;
}

/** On a small screen the inspector lies over the page. Returns what opens and closes it. */
function sheet(race, node) {
  const back = backCloses(() => race.select(null));
  let over = false;
  document.addEventListener('keydown', (event) => {
    if (!over || document.querySelector(':popover-open')) return;
    const focused = document.activeElement;
    /** @type {HTMLElement | null} */
    const text = document.querySelector('.vl-lane.focused .vl-text');
    if (event.key === 'Escape') {
      const within = node.contains(focused);
      race.select(null);
      if (within) text?.focus();
      return;
    }
    // Tab leads from the answer into the sheet, Shift+Tab back.
    const first = node.querySelector('button:not(:disabled)');
    if (event.key !== 'Tab' || focused !== (event.shiftKey ? first : text)) return;
    event.preventDefault();
    (event.shiftKey ? text : first)?.focus();
  });
  return () => {
    // Styles decide: only what lies over the page has a box and no offsetParent.
    const now = Boolean(node.getClientRects().length && node.offsetParent === null);
    if (now !== over) back[now ? 'opened' : 'closed']();
    over = now;
  };
}

/** Heading and body; null: not there yet. */
function aboutSelected(context) {
  const { race, lane } = context;
  const { token, node, round: index } = (lane && race.selected) ?? {};
  if (token !== undefined) return lane.tokens[token] ? aboutToken(context, token) : null;
  const round = lane?.rounds[index];
  if (node !== undefined) return aboutUnused(context, round, node);
  return round ? aboutRound(context, round) : { head: [], body: [hint()] };
}

/** open: its result is not shown yet. */
function aboutRound({ race, lane, names }, round, open = false) {
  const drafted = countDrafted(round);
  const facts = open
    ? W.inspect.roundGoing(drafted)
    : W.inspect.roundFacts(drafted, countKept(round), fmt.seconds(lane.stretch * round.clock_s));
  const head = [h('b', W.inspect.round(round.index)), h('span', facts)];
  if (open) return { head, body: [] };
  const first = lane.first(round);
  const chips = round.tokens.map(({ origin }, i) => {
    const text = lane.said(first + i);
    const click = () => race.pick(lane, { token: first + i });
    const props = { label: W.inspect.open(shown(text)), click };
    return h('button.vl-plainbutton', props, tokenChip(text, origin));
  });
  const notes = noteList(noted(lane, round, names));
  return { head, body: [h('p.vl-chips', chips), phaseTimes(round), notes] };
}

function aboutToken(context, token) {
  const { race, lane } = context;
  const { at, id, round: index, ...own } = lane.tokens[token];
  const round = lane.rounds[index];
  const move = (step, sign, name) => {
    const go = () => race.pick(lane, { token: token + step });
    const disabled = !lane.tokens[token + step];
    return button(sign, go, 'vl-small', { label: name, disabled });
  };
  const text = lane.said(token);
  const why = whyWritten(lane, token);
  const head = [
    (text === ENDS ? endChip : tokenChip)(text, lane.kind(own)),
    h('span', W.inspect.place(token, index, at + 1)),
    move(-1, '‹', W.inspect.previous),
    move(1, '›', W.inspect.next),
  ];
  const node = round.path[at + 1];
  const draw = drawOf(round, at);
  const parts = [
    probabilityBars(draw ?? chancesOf(round, node), draw && W.inspect.draws(draw)),
    candidates(context, round, round.path[at], id, token),
  ];
  return explained(context, round, { head, node, at, why, parts });
}

/** A node that is no token of the answer. */
function aboutUnused(context, round, node) {
  const { lane } = context;
  const { tree, index } = round;
  const { kind, why, at } = whyUnused(lane, round, node);
  const fell = node === rejected(round)[0] ? 'rejected' : 'after';
  const chip = `code.tk.chip.${node ? fell : 'idle'}`;
  const told = W.inspect[kind] ?? W.legend.rejected;
  const facts = W.inspect.fallen(told, index, depths(tree)[node]);
  const head = [h(chip, wordOf(tree, node)), h('span', facts)];
  const place = at < 0 ? null : lane.first(round) + at;
  const parts = node > 0 && [
    probabilityBars(chancesOf(round, node)),
    candidates(context, round, tree.parent[node], tree.tokens[node], place),
  ];
  return explained(context, round, { head, node, at, why, parts });
}

/** Why it is, or is not, in the answer, and what its round noted. at: the token's place in the round. */
function explained({ race, lane, names }, round, { head, node, at, why, parts }) {
  const words = h('div.vl-inspect-words', h('p.vl-why', why), parts);
  const grid = h('div.vl-inspect-grid', words, sight(race, lane, round, at));
  const spoken = h('span.vl-hidden', why); // read out with the heading
  const body = [grid, phaseTimes(round), noteList(noted(lane, round, names, node))];
  return { head: [...head, spoken], body };
}

/** Offers a branch to the token, where the question can be asked again. */
function candidate({ race, lane }, { id, text }, index) {
  const word = shown(text);
  const code = h('code', { title: word }, word);
  const { ended, selected, meta } = race;
  const open = selected?.picked && meta.asked && !meta.gone && ended;
  if (!open || index === null || id === lane.tokens[index].id || withEndMark(text) !== text)
    return code;
  const title = W.branch.take(word);
  const take = () => race.emit('branch', { lane, index, id, text });
  const closes = { popovertarget: 'vl-explain', popovertargetaction: 'hide', autofocus: true };
  const run = button(W.branch.run, take, 'vl-small', { sign: 'play', ...closes });
  const click = () => toggleCard(node, title, W.branch.told, run);
  const props = { label: title, title, 'aria-haspopup': 'true', click };
  const node = h('button.vl-plainbutton.vl-take', props, code, icon('branch'));
  return node;
}

function endChip(text, origin) {
  const node = term(text, W.lane.end, `tk chip ${origin}`);
  node.title = W.lane.end;
  return node;
}

const width = (p) => ({ style: { width: `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%` } });

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

/** Tokens likely after `node`. place: of token `id` in the answer, if any. */
function candidates(context, round, node, id, place) {
  const table = likeliest(round, node, id);
  if (!table) return h('p.vl-hint', W.inspect.light);
  const { columns, rows } = table;
  const cell = (p) =>
    p === undefined ? h('td', h('span', '·')) : h('td', h('i', width(p)), h('span', fmt.prob(p)));
  const line = (row) => {
    const cells = columns.map((column) => cell(row.prob.get(column)));
    return tableRow(candidate(context, row, place), cells, {
      class: row.id === id ? 'chosen' : null,
    });
  };
  const { candidate: first, candidates: title, drafter } = W.inspect;
  const by = (column) => (['target', drafter].includes(column) ? '' : `${drafter}, `);
  const views = columns.map((column) => by(column) + (W.views[column] ?? column));
  const caption = h('caption.vl-help', title);
  const head = headRow([first, ...views]);
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
