/* Checks whether a drafter fits a target: two ids of the hub, looked up by the server without
   their weights; given the function that calls it. */

import { button, h, icon } from './dom.js';
import { W } from './words.js';

/** A folded form. ask({target, drafter}): returns {fits, findings, methods}, or {problem}. */
export function fitForm(ask) {
  const input = (name) =>
    h('input', { type: 'text', id: `vl-fit-${name}`, placeholder: 'OWNER/NAME' });
  const row = (box, text) => h('div.vl-field', h('label', { for: box.id, text }), box);
  const [target, drafter] = [input('target'), input('drafter')];
  const said = h('div.vl-fit-said', { role: 'status' });
  const look = async () => {
    go.disabled = true;
    said.replaceChildren(h('p.vl-help', W.fit.looking));
    const asked = { target: target.value.trim(), drafter: drafter.value.trim() };
    const found = await ask(asked).catch(() => ({ problem: W.fit.unreachable }));
    go.disabled = false;
    said.replaceChildren(...verdict(found));
  };
  const go = button(W.fit.check, look, 'vl-secondary');
  return h(
    'details.vl-elsewhere.vl-fit',
    h('summary', icon('chevron'), h('span', W.fit.title)),
    h('p.vl-help', W.fit.help),
    row(target, W.fit.target),
    row(drafter, W.fit.drafter),
    h('div.vl-buttons', go),
    said,
  );
}

function verdict({ problem, fits, findings, methods }) {
  if (problem) return [h('p.wrong', problem)];
  return [
    h('p', h('b', fits ? W.fit.yes(methods) : W.fit[fits === null ? 'open' : 'no'])),
    h(
      'ul',
      findings.map(({ ok, text }) =>
        h(
          'li',
          { class: ok === null ? 'note' : ok ? 'good' : 'bad' },
          icon(ok === null ? 'next' : ok ? 'check' : 'close', 14),
          h('span.vl-hidden', ok === null ? '' : W.fit.marks[ok ? 'yes' : 'no']),
          h('span', { text }),
        ),
      ),
    ),
  ];
}
