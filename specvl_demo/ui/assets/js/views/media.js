/* Draws the pictures and clips of a question (state/files.js), which come in by upload, drop, paste and camera. */

import { button, filePicker, h, iconButton, refill, tell, thumbnail } from './dom.js';
import { W } from '../words/words.js';

/** Where one points at it. */
const playing = {
  loop: true,
  pointerenter: (e) => e.target.play().catch(() => null),
  pointerleave: (e) => e.target.pause(),
};

const removeButton = (kind, { name }, fn) =>
  iconButton('close', W.media.remove(name), fn, kind, 12);

/** The browser's own address of a file, and listeners that give it up once it is shown. */
function localAddress(file) {
  const url = URL.createObjectURL(file);
  const free = () => URL.revokeObjectURL(url);
  return { url, listeners: { load: free, loadeddata: free, error: free } };
}

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
      button(W.media.camera, () => this.openCamera(), 'vl-tool', { sign: 'camera' }),
    ];
    this.node = h(
      'div.vl-well',
      { role: 'group', 'aria-label': W.media.title, ...this.dropListeners },
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
    this.takePasted();
  }

  get dropListeners() {
    const over = (on) => (e) => {
      if (!e.dataTransfer.types.includes('Files')) return;
      e.preventDefault();
      this.node.classList.toggle('over', on);
    };
    const drop = (e) => {
      over(false)(e);
      this.files.add([...e.dataTransfer.files]);
    };
    return { dragover: over(true), dragleave: over(false), drop };
  }

  takePasted() {
    document.addEventListener('paste', (e) => {
      const files = [...(e.clipboardData?.files ?? [])];
      if (files.length && this.node.isConnected) {
        e.preventDefault();
        this.files.add(files);
      }
    });
  }

  showRefused() {
    const line = (file) => {
      const remove = removeButton('vl-reset', file, () => this.files.forgive(file));
      return h('li.wrong', h('span', file.why), remove);
    };
    refill(this.outside, this.files.refused.map(line));
  }

  show() {
    const { files } = this;
    const { pending } = files;
    const media = pending.length ? files.own : files.media; // an example's make way
    this.node.classList.toggle('full', media.length + pending.length > 0);
    this.bars = pending.map(({ file: { name } }) =>
      h('progress', { 'aria-label': W.media.sending(name) }),
    );
    const mark = { 'aria-hidden': 'true', text: W.media.clip };
    const taken = (item) => {
      const clip = item.kind === 'video';
      const shown = thumbnail(item, clip ? playing : { error: () => files.dropBroken(item) });
      const remove = removeButton('vl-remove', item, () => files.remove(item));
      return h('li', shown, clip && h('span.vl-clipmark', mark), remove);
    };
    const coming = ({ kind, file }, i) => {
      const { url, listeners } = localAddress(file);
      return h('li', thumbnail({ kind, url }, listeners), this.bars[i]);
    };
    this.strip.replaceChildren(...media.map(taken), ...pending.map(coming));
  }

  progress() {
    this.files.pending.forEach(({ share }, i) => {
      this.bars[i].value = share;
    });
  }

  async openCamera() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } });
    } catch {
      this.files.say(W.media.noCamera, true);
      return;
    }
    const video = h('video', { autoplay: true, playsinline: true, muted: true });
    video.srcObject = stream;
    const take = button(W.media.take, () => this.takePicture(video, dialog), 'vl-primary');
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

  takePicture(video, dialog) {
    const canvas = h('canvas', { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext('2d').drawImage(video, 0, 0);
    const type = 'image/jpeg';
    const taken = (blob) => this.files.add([new File([blob], 'camera.jpg', { type })]);
    canvas.toBlob(taken, type, 0.9);
    dialog.close();
  }
}
