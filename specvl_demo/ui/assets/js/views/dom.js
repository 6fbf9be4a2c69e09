/* Elements and icons. Text from models, files and traces reaches the page only through text nodes and
   attributes, never as markup. */

import { W } from '../words/words.js';

const isThere = (child) => child != null && child !== false;

/** Makes elements from a tag with classes (`'p.vl-help'`), properties if there are any, and children. A property is
 *  `label` (for screen readers), `data` {name: value}, `style` {name: value}, a listener if it is a function, else an
 *  attribute, which false, undefined and null omit. A button submits nothing unless its type says so. */
const elements =
  (namespace) =>
  (tag, ...parts) => {
    const [kind, ...classes] = tag.split('.');
    /** @type {any} */
    const node = document.createElementNS(namespace, kind);
    if (classes.length) node.setAttribute('class', classes.join(' '));
    if (kind === 'button') node.type = 'button';
    const given = Object.getPrototypeOf(parts[0] ?? '') === Object.prototype;
    const [props, ...children] = given ? parts : [{}, ...parts];
    for (const [name, value] of Object.entries(props)) {
      if (!isThere(value)) continue;
      if (typeof value === 'function') node.addEventListener(name, value);
      else if (name === 'data') Object.assign(node.dataset, value);
      else if (name === 'style')
        for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
      else node.setAttribute(name === 'label' ? 'aria-label' : name, value === true ? '' : value);
    }
    node.append(...children.flat().filter(isThere));
    return node;
  };

export const h = elements('http://www.w3.org/1999/xhtml');
export const svg = elements('http://www.w3.org/2000/svg');
export const mathml = elements('http://www.w3.org/1998/Math/MathML');

/** As `h` does, leave out children that are null or false. */
export const refill = (node, children) => node.replaceChildren(...children.filter(isThere));

/** A `details` whose contents are folded away under a heading. */
export function folded(tag, heading, ...parts) {
  const node = h(tag, ...parts);
  node.prepend(h('summary', icon('chevron'), heading));
  return node;
}

export const options = (choices) => choices.map(([value, text]) => h('option', { value }, text));

/** sign: an icon before the text. */
export function button(text, fn, kind = 'vl-small', more = /** @type {any} */ ({})) {
  const { sign, ...props } = more;
  return h('button', { class: kind, click: fn, ...props }, sign && icon(sign), text);
}

/** A listener of a button that looks busy until it is done. */
export const busily =
  (does) =>
  async ({ currentTarget: pressed }) => {
    pressed.ariaBusy = true;
    await does();
    pressed.ariaBusy = false;
  };

/** The text is said where one points at it. */
export const iconButton = (sign, text, fn, kind = 'vl-tool') =>
  h('button', { class: kind, label: text, title: text, click: fn }, icon(sign));

export const checkbox = (onchange, more) =>
  h('input', { type: 'checkbox', change: (e) => onchange(e.target.checked), ...more });

/** A finger that goes up or down scrolls the page, and changes nothing. */
export function slider(label, max, onmove, more) {
  let held = null; // where a finger began, until it goes sideways or up
  let [before, value] = ['', ''];
  const release = () => {
    if (held) onmove(Number((node.value = value)));
    held = null;
  };
  const listeners = {
    input() {
      ({ value } = node);
      if (!held) onmove(Number(value));
    },
    pointerdown(e) {
      before = value = node.value;
      held = e.pointerType === 'touch' ? e : null;
    },
    pointermove({ clientX: x, clientY: y }) {
      if (Math.abs(x - held?.clientX) - Math.abs(y - held?.clientY) > 8) release();
    },
    pointerup: release,
    pointercancel() {
      if (held) node.value = before;
      held = null;
    },
  };
  const node = h('input', { type: 'range', min: 0, max, value: 0, label, ...listeners, ...more });
  return node;
}

/** Properties of a box that a keyboard can scroll. */
export const scrolls = (label) => ({ tabindex: '0', role: 'group', label });

/** A picture or a clip; without a name it is decoration. */
export function thumbnail({ kind = 'image', url: src, name = '' }, more = {}) {
  if (kind !== 'video') return h('img', { src, alt: name, ...more });
  const clip = { src, muted: true, playsinline: true, preload: 'metadata' };
  return h('video', { ...clip, label: name || null, ...more });
}

/** A button, and the hidden input that it opens. @param {any} props of both */
export function filePicker(text, onfiles, props) {
  const { kind, sign, title, ...more } = props;
  const change = ({ target }) => {
    onfiles([...target.files]);
    target.value = ''; // so that the same can be picked again
  };
  const input = h('input', { type: 'file', hidden: true, change, ...more });
  return [button(text, () => input.click(), kind, { sign, title }), input];
}

/** Offer a file. An SVG named .pdf is printed instead: browsers save that as PDF, without a library. */
export function download(name, content, type = 'application/jsonl') {
  if (name.endsWith('.pdf')) {
    print(content);
    return;
  }
  const href = URL.createObjectURL(new Blob([content], { type }));
  h('a', { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

async function print(content) {
  const srcdoc = `<body style="margin:0">${await new Response(content).text()}`;
  const load = () => frame.contentWindow.print();
  const frame = h('iframe', { srcdoc, hidden: true, load });
  document.body.append(frame);
}

export const headRow = (names) =>
  h('thead', h('tr', ...names.map((name) => h('th', { scope: 'col' }, name))));

export const tableRow = (name, cells, props = {}) =>
  h('tr', props, h('th', { scope: 'row' }, name), cells);

/** Write a text only if it differs: layouts are dear. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function tell(node, text, wrong = false) {
  put(node, text);
  node.classList.toggle('wrong', wrong);
}

const ICONS = {
  play: 'M5 3.5v9l7.5-4.5z',
  pause: 'M4.5 3.5h2.5v9H4.5zM9 3.5h2.5v9H9z',
  stop: 'M4 4h8v8H4z',
  image: 'M2.5 3h11v10h-11zM2.5 10.5l3-3 2.5 2.5 2-2 3.5 3M10.4 5.9a.6.6 0 1 0 .01 0',
  camera: 'M2 5h3l1-1.5h4L11 5h3v8H2zM8 6.6a2.2 2.2 0 1 0 .01 0',
  close: 'M4 4l8 8M12 4l-8 8',
  reset: 'M3.2 8a4.8 4.8 0 1 0 1.6-3.6M3 2.5v3h3',
  branch: 'M3 8h4M7 8c2.5 0 2-4 6-4M7 8c2.5 0 2 4 6 4',
  save: 'M8 2.5v7.2M5 7l3 3 3-3M3 12.8h10',
  open: 'M8 10.2V3M5 5.7l3-3 3 3M3 12.8h10',
  sun: 'M8 5a3 3 0 1 0 .01 0M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.1 1.1M11.9 11.9L13 13M13 3l-1.1 1.1M4.1 11.9L3 13',
  screen: 'M2.5 3h11v8h-11zM6 13.5h4',
  chevron: 'M4.5 6.2L8 9.8l3.5-3.6',
  edit: 'M3 13l.6-2.8 7-7 2.2 2.2-7 7zM9.4 4.4l2.2 2.2',
};

/** Screen readers read the label of the button around it. */
export function icon(name) {
  const solid = ['play', 'pause', 'stop'].includes(name);
  const [fill, stroke] = solid ? ['currentColor', 'none'] : ['none', 'currentColor'];
  const props = { viewBox: '0 0 16 16', 'aria-hidden': 'true' };
  return svg('svg.vl-icon', props, svg('path', { d: ICONS[name], fill, stroke }));
}

let card = null; // one for the whole page explains its terms

/** Opens beside its owner, within the page's own frame, whose colours it takes. */
export function toggleCard(owner, title, text, ...more) {
  card ??= h('div.vl-explain', { popover: 'auto', role: 'note', id: 'vl-explain' });
  if (!card.isConnected) owner.closest('.vl').append(card);
  const same = card.matches(':popover-open') && card.owner === owner;
  card.hidePopover();
  if (same) return;
  card.owner = owner;
  card.replaceChildren(h('b', title), h('p', text), ...more);
  card.showPopover();
  const { left, top } = owner.getBoundingClientRect();
  const { width, height } = card.getBoundingClientRect();
  const x = Math.max(8, Math.min(left, innerWidth - width - 8));
  // Not upon what it explains, below the name.
  const { bottom } = (owner.closest('section') ?? owner).getBoundingClientRect();
  const above = top - height - 6;
  const y = above < 8 ? Math.min(bottom + 6, innerHeight - height - 8) : above;
  Object.assign(card.style, { left: `${x}px`, top: `${y}px` });
}

/** A button that opens the explanation of a term; plain words if there is none. */
export function term(title, text, classes = '') {
  if (!text) return h('span', { class: classes }, title);
  const more = { 'aria-haspopup': 'true', 'aria-description': W.explain(title) };
  const node = button(title, () => toggleCard(node, title, text), `vl-term ${classes}`, more);
  return node;
}
