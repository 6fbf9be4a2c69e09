/* Checks whether a drafter fits a target: two ids of the hub, looked up by the server without
   their weights; given the function that calls it. */

import { h, icon } from './dom.js';
import { W } from './words.js';

/** A folded form. ask({target, drafter}): returns {fits, findings, methods}, or {problem}. */
export function fitForm(ask) {
  const input = (id, text, hint) => {
    const box = h('input', { type: 'text', id, placeholder: hint, autocomplete: 'off' });
    return { box, node: h('div', { class: 'vl-field' }, h('label', { for: id, text }), box) };
  };
  const target = input('vl-fit-target', W.fit.target, 'OWNER/TARGET');
  const drafter = input('vl-fit-drafter', W.fit.drafter, 'OWNER/DRAFTER');
  const said = h('div', { class: 'vl-fit-said', role: 'status' });
  const look = async () => {
    button.disabled = true;
    said.replaceChildren(h('p', { class: 'vl-help', text: W.fit.looking }));
    const asked = { target: target.box.value.trim(), drafter: drafter.box.value.trim() };
    const found = await ask(asked).catch(() => ({ problem: W.fit.unreachable }));
    button.disabled = false;
    said.replaceChildren(...verdict(found));
  };
  const button = h('button', {
    type: 'button',
    class: 'vl-secondary',
    text: W.fit.check,
    on: { click: look },
  });
  return h(
    'details',
    { class: 'vl-elsewhere vl-fit' },
    h('summary', {}, icon('chevron'), h('span', { text: W.fit.title })),
    h('p', { class: 'vl-help', text: W.fit.help }),
    target.node,
    drafter.node,
    h('div', { class: 'vl-buttons' }, button),
    said,
  );
}

function verdict({ problem, fits, findings, methods }) {
  if (problem) return [h('p', { class: 'wrong', text: problem })];
  return [
    h('p', {}, h('b', { text: fits ? W.fit.yes(methods) : W.fit.no })),
    h(
      'ul',
      {},
      findings.map(({ ok, text }) =>
        h(
          'li',
          { class: ok === null ? 'note' : ok ? 'good' : 'bad' },
          icon(ok === null ? 'next' : ok ? 'check' : 'close', 14),
          h('span', {
            class: 'vl-hidden',
            text: ok === null ? '' : W.fit.marks[ok ? 'yes' : 'no'],
          }),
          h('span', { text }),
        ),
      ),
    ),
  ];
}
