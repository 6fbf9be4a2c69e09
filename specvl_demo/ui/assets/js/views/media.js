/* Draws the pictures and clips of a question (state/files.js), which come in by upload, drop, paste and camera. */

import { button, filePicker, h, iconButton, tell } from './dom.js';
import { W } from '../words/words.js';

/** @import { Files } from '../state/files.js' */

/** A clip that plays where one points at it. */
function clip({ name, url: src }) {
  const pointerenter = (e) => e.target.play().catch(() => null);
  const pointerleave = (e) => e.target.pause();
  const still = { src, muted: true, playsinline: true, preload: 'metadata', loop: true };
  return h('video', { ...still, 'aria-label': name, on: { pointerenter, pointerleave } });
}

/** The button that takes a file away. */
const removeButton = (kind, { name }, fn) =>
  iconButton('close', W.media.remove(name), fn, kind, 12);

/** Shows the question's pictures and clips, and takes new ones. */
export class MediaWell {
  /** @param {Files} files */
  constructor(files) {
    this.files = files;
    const { limits } = files;
    const accept = [...limits.picture_types, ...limits.clip_types].join(',');
    const more = { id: 'vl-files', multiple: true, accept };
    this.input = filePicker(W.media.choose, (list) => files.add(list), more);
    this.strip = h('ul.vl-thumbs', { 'aria-label': W.media.title });
    this.outside = h('ul.vl-refused');
    this.note = h('p.vl-help.vl-media-note', { role: 'status' });
    this.hint = h('p.vl-drop-hint', W.media.hint);
    const tools = [
      button(W.media.upload, () => this.input.click(), 'vl-tool', { sign: 'image' }),
      button(W.media.camera, () => this.shoot(), 'vl-tool', { sign: 'camera' }),
    ];
    this.node = h(
      'div.vl-well',
      { role: 'group', 'aria-label': W.media.title },
      this.strip,
      this.hint,
      h('div.vl-tools', tools),
      this.input,
      this.outside,
      this.note,
    );
    files.on('show', () => this.show());
    files.on('progress', () => this.progress());
    files.on('refused', () => this.showRefused());
    files.on('say', ({ text, wrong }) => tell(this.note, text, wrong));
    this.listen();
  }

  /** Take files that are dropped on it, and pasted anywhere. */
  listen() {
    const over = (on) => (e) => {
      if (!e.dataTransfer.types.includes('Files')) return;
      e.preventDefault();
      this.node.classList.toggle('over', on);
    };
    this.node.addEventListener('dragover', over(true));
    this.node.addEventListener('dragleave', over(false));
    this.node.addEventListener('drop', (e) => {
      over(false)(e);
      this.files.add([...e.dataTransfer.files]);
    });
    document.addEventListener('paste', (e) => {
      const files = [...(e.clipboardData?.files ?? [])];
      if (files.length && this.node.isConnected) {
        e.preventDefault();
        this.files.add(files);
      }
    });
  }

  showRefused() {
    const line = (file) =>
      h(
        'li.wrong',
        h('span', file.why),
        removeButton('vl-reset', file, () => this.files.forgive(file)),
      );
    this.outside.replaceChildren(...this.files.refused.map(line));
  }

  /** Draw the files, and a bar for each on its way. */
  show() {
    const { files } = this;
    const picture = (item) =>
      h('img', { src: item.url, alt: item.name, on: { error: () => files.dropBroken(item) } });
    const { pending } = files;
    const media = files.pending.length ? files.own : files.media; // an example's make way
    this.node.classList.toggle('full', media.length + pending.length > 0);
    this.bars = pending.map(({ file: { name } }) =>
      h('progress', { 'aria-label': W.media.sending(name) }),
    );
    const still = ({ kind, file }) => {
      const src = URL.createObjectURL(file);
      const free = () => URL.revokeObjectURL(src);
      const [tag, more] = kind === 'video' ? ['video', { muted: true }] : ['img', { alt: '' }];
      return h(tag, { src, ...more, on: { load: free, loadeddata: free, error: free } });
    };
    const mark = { 'aria-hidden': 'true', text: W.media.clip };
    const shown = (item) =>
      item.kind === 'video' ? [clip(item), h('span.vl-clipmark', mark)] : [picture(item)];
    this.strip.replaceChildren(
      ...media.map((item) =>
        h(
          'li',
          shown(item),
          removeButton('vl-remove', item, () => files.remove(item)),
        ),
      ),
      ...pending.map((one, i) => h('li', still(one), this.bars[i])),
    );
  }

  /** Show how much of each file on its way is sent. */
  progress() {
    this.files.pending.forEach(({ share }, i) => {
      this.bars[i].value = share;
    });
  }

  /** Open the camera in the page's own dialog, to take a picture. */
  async shoot() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } });
    } catch {
      this.files.say(W.media.noCamera, true);
      return;
    }
    const video = h('video', { autoplay: true, playsinline: true, muted: true });
    video.srcObject = stream;
    const take = button(W.media.take, () => this.take(video, dialog), 'vl-primary');
    const cancel = button(W.media.cancel, () => dialog.close(), 'vl-secondary');
    const named = { 'aria-label': W.media.camera };
    const dialog = h('dialog.vl-dialog', named, video, h('div.vl-buttons', take, cancel));
    dialog.addEventListener('close', () => {
      stream.getTracks().forEach((t) => t.stop());
      dialog.remove();
    });
    this.node.append(dialog);
    dialog.showModal();
  }

  /** Add what the camera shows to the files. */
  take(video, dialog) {
    const canvas = h('canvas', { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext('2d').drawImage(video, 0, 0);
    const type = 'image/jpeg';
    const taken = (blob) => this.files.add([new File([blob], 'camera.jpg', { type })]);
    canvas.toBlob(taken, type, 0.9);
    dialog.close();
  }
}
