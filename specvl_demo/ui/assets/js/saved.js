/* A race as a file of its own (report/html.py): the same views, read-only, without a server. */

import { Emitter } from './state/emitter.js';
import { Race } from './state/race.js';
import { Replay } from './state/replay.js';
import { point } from './records/highlights.js';
import { first, parse } from './records/trace.js';
import { download, h } from './views/dom.js';
import { Painter } from './views/paint.js';
import { raceView } from './views/raceview.js';
import { topLine } from './views/topline.js';
import { W } from './words/words.js';

/** @param {string} id of an element of the file */
const read = (id) => document.getElementById(id)?.textContent ?? '';

const known = JSON.parse(read('known'));
const written = read('trace');
const race = new Race(known.rules);
const replay = new Replay(race);
const painter = new Painter();
/** Nothing is told around a race that stays as it is. @type {any} */
const nothing = { notice: { text: '', wrong: false }, offers: [], waiting: '', undrawn: false };
const view = raceView({
  race,
  replay,
  stage: Object.assign(new Emitter(), nothing),
  painter,
  catalog: known,
  on: { save: () => download('race.trace.jsonl', `${written}\n`), saves: () => ['trace'] },
});

const records = parse(written);
const { facts: machine, compared, example } = known;
const { question } = first(records).notes ?? {};
race.show(records, { source: 'saved', question, machine, compared, example });
point(race);

const earlier = known.earlier.map(([asked, answer]) =>
  h('li', h('p', h('b', asked || W.chat.nothing), h('span', answer))),
);
const turns = h('section.vl-conversation', { hidden: !earlier.length }, h('ol.vl-turns', earlier));
const head = topLine(painter);
const made = h('p.vl-help.vl-made', machine);
const main = h('div.vl-main', h('div', turns, view.node, made));
document.getElementById('specvl')?.replaceChildren(h('div.vl.saved', head, h('div.vl-body', main)));
