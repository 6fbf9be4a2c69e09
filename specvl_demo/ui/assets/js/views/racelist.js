/* The visitor's own races, and what opens traces from disk. */

import { button, download, filePicker, folded, h, icon, iconButton, put, tell } from './dom.js';
import { stills } from './tiles.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** show(records, meta): put a race on the page. @param {Archive} archive */
export function raceList(archive, show) {
  const more = { id: 'vl-trace', accept: '.jsonl,.json', title: W.trace.drop };
  const open = filePicker(W.trace.open, ([file]) => archive.open(file), more);
  const note = h('p.vl-help', { role: 'status' });
  const list = h('ul.vl-runs');
  const clear = button(W.trace.forget, () => archive.forget());
  const count = h('span');
  const buttons = h('div.vl-buttons', open, clear);
  const node = folded('details.vl-mine', count, list, buttons, note);
  const draw = () => {
    const { runs } = archive;
    list.replaceChildren(...runs.map((run) => lineOf(run, show)));
    put(count, W.trace.yours(runs.length));
    clear.hidden = !runs.length;
  };
  archive.on('change', draw);
  archive.on('say', ({ text, wrong }) => {
    tell(note, text, wrong);
    if (!wrong) return;
    node.open = true;
    note.scrollIntoView({ block: 'nearest' });
  });
  draw();
  return node;
}

function lineOf({ records, meta, lanes, at }, show) {
  const time = new Date(at).toLocaleString([], { dateStyle: 'short', timeStyle: 'short' });
  const question = h('b', meta.question || W.trace.untitled);
  const words = h('span', question, h('small', `${time} · ${lanes.join(', ')}`));
  const pictures = stills(trace.shown(trace.first(records))).slice(0, 2);
  if (!pictures.length) pictures.push(h('i.vl-noimage', icon('play')));
  const save = () => download('race.trace.jsonl', trace.write(records));
  return h(
    'li',
    h('button.vl-run', { click: () => show(records, meta) }, pictures, words),
    iconButton('save', W.run.saveAs.trace, save),
  );
}
