/* The pictures and clips of a question (state/files.js): by upload, drop, paste and camera. */

import { button, filePicker, h, iconButton, refill, tell, thumbnail } from './dom.js';
import { W } from '../words/words.js';

const playWherePointedAt = {
  loop: true,
  pointerenter: (e) => e.target.play().catch(() => null),
  pointerleave: (e) => e.target.pause(),
};

const removeButton = (kind, { name }, fn) => iconButton('close', W.media.remove(name), fn, kind);

/** @param {Files} files */
export function mediaWell(files) {
  const accept = files.types.join(',');
  const more = { id: 'vl-files', multiple: true, accept, kind: 'vl-tool', sign: 'image' };
  const strip = h('ul.vl-thumbs', { label: W.media.title });
  const outside = h('ul.vl-refused');
  const note = h('p.vl-help.vl-media-note', { role: 'status' });
  const tools = h(
    'div.vl-tools',
    filePicker(W.media.upload, (list) => files.add(list), more),
    button(W.media.camera, () => openCamera(files, node), 'vl-tool', { sign: 'camera' }),
  );
  const group = { role: 'group', label: W.media.title };
  const hint = h('p.vl-drop-hint', W.media.hint);
  const node = h('div.vl-well', group, strip, hint, tools, outside, note);
  let bars = [];
  files.on('show', () => {
    const { pending } = files;
    const media = pending.length ? files.own : files.media; // an example's make way
    bars = pending.map(({ file: { name } }) => h('progress', { label: W.media.sending(name) }));
    const taken = media.map((item) => itemOf(files, item));
    // A removed one's focus goes on to the next, or to Upload.
    const at = [...strip.children].indexOf(document.activeElement.parentNode);
    refill(strip, [...taken, ...pending.map((one, i) => h('li', preview(one), bars[i]))]);
    if (at >= 0) (strip.children[at]?.querySelector('button') ?? tools.firstChild).focus();
  });
  files.on('progress', () => files.pending.forEach(({ share }, i) => (bars[i].value = share)));
  files.on('refused', () => {
    const line = (file) => {
      const remove = removeButton('vl-reset', file, () => files.forgive(file));
      return h('li.wrong', h('span', file.why), remove);
    };
    refill(outside, files.refused.map(line));
  });
  files.on('say', ({ text, wrong }) => tell(note, text, wrong));
  listen(files, node);
  return node;
}

function itemOf(files, item) {
  const clip = item.kind === 'video';
  const more = { ...(clip && playWherePointedAt), error: () => files.dropBroken(item) };
  const remove = removeButton('vl-remove', item, () => files.remove(item));
  return h(
    'li',
    thumbnail(item, more),
    clip && h('span.vl-clipmark', { 'aria-hidden': 'true' }, W.media.clip),
    remove,
  );
}

/** Of a file on its way, from the visitor's disk. */
function preview({ kind, file }) {
  const url = URL.createObjectURL(file);
  const free = () => URL.revokeObjectURL(url);
  return thumbnail({ kind, url }, { load: free, loadeddata: free, error: free });
}

/** Light up below files (main.js takes what is dropped), and take what is pasted anywhere. */
function listen(files, node) {
  const over = (on) => (e) =>
    node.classList.toggle('over', on && e.dataTransfer.types.includes('Files'));
  node.addEventListener('dragover', over(true));
  for (const end of ['dragleave', 'drop']) node.addEventListener(end, over(false));
  document.addEventListener('paste', (e) => {
    const pasted = [...e.clipboardData.files];
    if (!pasted.length) return;
    e.preventDefault();
    files.add(pasted);
  });
}

async function openCamera(files, node) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } });
  } catch {
    files.say(W.media.noCamera, true);
    return;
  }
  const video = h('video', { autoplay: true, playsinline: true, muted: true });
  video.srcObject = stream;
  const take = () => {
    takePicture(files, video);
    dialog.close();
  };
  const buttons = h(
    'div.vl-buttons',
    button(W.media.take, take, 'vl-primary'),
    button(W.media.cancel, () => dialog.close(), 'vl-secondary'),
  );
  const close = () => {
    stream.getTracks().forEach((t) => t.stop());
    dialog.remove();
  };
  const dialog = h('dialog.vl-dialog', { label: W.media.camera, close }, video, buttons);
  node.append(dialog);
  dialog.showModal();
}

function takePicture(files, video) {
  const canvas = h('canvas', { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext('2d').drawImage(video, 0, 0);
  const add = (blob) => files.add([new File([blob], 'camera.jpg', { type: blob.type })]);
  canvas.toBlob(add, 'image/jpeg', 0.9);
}
