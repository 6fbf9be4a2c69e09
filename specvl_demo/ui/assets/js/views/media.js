/* Pictures and clips of a question: upload, drop, paste, camera; thumbnails that can be removed.
   Checks count, kind and size before anything is sent; the server checks again. */

import { button, filePicker, h, icon, iconButton, fmt } from './dom.js';
import { keepFile } from '../state/keep.js';
import { W } from '../words/words.js';

/** A clip that plays where one points at it. */
function clip({ name, url: src }) {
  const pointerenter = (e) => e.target.play().catch(() => null);
  const pointerleave = (e) => e.target.pause();
  const still = { src, muted: true, playsinline: true, preload: 'metadata', loop: true };
  return h('video', { ...still, 'aria-label': name, on: { pointerenter, pointerleave } });
}

/** What takes a file away. */
const cross = (kind, { name }, fn) => iconButton('close', W.media.remove(name), fn, kind, 12);

export class MediaWell {
  constructor(catalog, api, onchange) {
    this.limits = catalog.limits;
    this.api = api;
    this.onchange = onchange;
    this.media = [];
    this.refused = []; // files that did not become part of the question: {name, why}
    this.stood = []; // of an example, before a file of the visitor's own took its place
    this.busy = 0;
    this.coming = 0; // files of a choice that are not looked at yet
    const accept = [...this.limits.picture_types, ...this.limits.clip_types].join(',');
    const more = { id: 'vl-files', multiple: true, accept };
    this.input = filePicker(W.media.choose, (files) => this.add(files), more);
    this.strip = h('ul.vl-thumbs', { 'aria-label': W.media.list });
    this.outside = h('ul.vl-refused');
    this.note = h('p.vl-help.vl-media-note', { role: 'status' });
    this.hint = h('p.vl-drop-hint', W.media.hint);
    this.node = h(
      'div.vl-well',
      { role: 'group', 'aria-label': W.media.title },
      this.strip,
      this.hint,
      h(
        'div.vl-tools',
        this.tool('image', W.media.upload, () => this.input.click()),
        this.tool('camera', W.media.camera, () => this.shoot()),
      ),
      this.input,
      this.outside,
      this.note,
    );
    this.listen();
  }

  tool(name, text, fn) {
    return h('button.vl-tool', { on: { click: fn } }, icon(name), h('span', { text }));
  }

  listen() {
    const over = (on) => (e) => {
      if (![...e.dataTransfer.types].includes('Files')) return;
      e.preventDefault();
      this.node.classList.toggle('over', on);
    };
    this.node.addEventListener('dragover', over(true));
    this.node.addEventListener('dragleave', over(false));
    this.node.addEventListener('drop', (e) => {
      over(false)(e);
      this.add([...e.dataTransfer.files]);
    });
    document.addEventListener('paste', (e) => {
      const files = [...(e.clipboardData?.files ?? [])];
      if (files.length && this.node.isConnected) {
        e.preventDefault();
        this.add(files);
      }
    });
  }

  say(text, wrong = false) {
    this.note.textContent = text;
    this.note.classList.toggle('wrong', wrong);
  }

  kind(file) {
    const dot = file.name.slice(file.name.lastIndexOf('.')).toLowerCase();
    const typed = /^image\/(png|jpe?g|webp|bmp|gif)$/.test(file.type);
    if (typed || this.limits.picture_types.includes(dot)) return 'image';
    return this.limits.clip_types.includes(dot) ? 'video' : null;
  }

  async add(files) {
    this.forgive(); // what was wrong with the choice before is over
    this.coming = files.length;
    for (const file of files) {
      this.coming -= 1;
      const kind = this.kind(file);
      const why = this.unfit(file, kind);
      if (why) this.refuse(file.name, why);
      else await this.send(file, kind);
    }
  }

  /** Why a file cannot be part of the question; null if it can. */
  unfit({ name, size }, kind) {
    const { bytes, clip_types: clips, files, picture_types: pictures } = this.limits;
    const types = [...pictures, ...clips].map((type) => type.slice(1).toUpperCase());
    if (!kind) return W.media.unknown(name, types.join(', '));
    if (!size) return W.media.empty(name);
    if (size > bytes) return W.media.large(name, fmt.bytes(size), fmt.bytes(bytes));
    return this.own.length + this.busy >= files ? W.media.many(name, files) : null;
  }

  /** A file that is not part of the question: it stays visible, and no race runs until it is
   *  removed. */
  refuse(name, why) {
    this.refused = [...this.refused.filter((one) => one.name !== name), { name, why }].slice(-2);
    this.showRefused();
  }

  forgive() {
    this.refused = [];
    this.showRefused();
  }

  showRefused() {
    this.outside.replaceChildren(
      ...this.refused.map((one) =>
        h(
          'li.wrong',
          h('span', one.why),
          cross('vl-reset', one, () => {
            this.refused = this.refused.filter((other) => other !== one);
            this.showRefused();
            this.onchange(this.media);
          }),
        ),
      ),
    );
  }

  async send(file, kind) {
    this.busy += 1;
    this.say(W.media.sending(file.name));
    let sent;
    try {
      sent = await this.api.upload(file);
    } catch {
      this.say('');
      this.refuse(file.name, W.media.failed(file.name));
      return;
    } finally {
      this.busy -= 1;
    }
    keepFile(sent.path, file);
    this.join({ path: sent.path, url: sent.url, name: file.name, kind });
    if (/\.gif$/i.test(file.name)) this.say(W.media.moving(file.name));
  }

  /** What the visitor added; an example's pictures are shown only until then. */
  get own() {
    return this.media.filter((item) => !item.example);
  }

  join(item) {
    if (!this.own.length) this.stood = this.media;
    this.change([...this.own, item]);
  }

  change(media) {
    this.show(media.slice(0, this.limits.files));
    this.onchange(this.media, this.coming);
  }

  show(media) {
    this.media = media;
    this.say('');
    this.node.classList.toggle('full', media.length > 0);
    this.strip.replaceChildren(
      ...media.map((item, i) =>
        h(
          'li',
          item.kind === 'video'
            ? clip(item)
            : h('img', { src: item.url, alt: item.name, on: { error: () => this.broken(item) } }),
          item.kind === 'video' &&
            h('span.vl-clipmark', { 'aria-hidden': 'true', text: W.media.clip }),
          cross('vl-remove', item, () => this.change(this.media.filter((_, j) => j !== i))),
        ),
      ),
    );
  }

  /** A file that the browser cannot show will not be read by the model either. */
  broken(item) {
    if (!this.media.includes(item)) return;
    const rest = this.media.filter((other) => other !== item);
    this.change(rest.length ? rest : this.stood);
    this.refuse(item.name, W.media.broken(item.name));
  }

  /** A picture from the camera, in the page's own dialog. */
  async shoot() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } });
    } catch (error) {
      this.say(W.media.noCamera, true);
      return;
    }
    const video = h('video', { autoplay: true, playsinline: true, muted: true });
    video.srcObject = stream;
    const dialog = h(
      'dialog.vl-dialog',
      { 'aria-label': W.media.camera },
      video,
      h(
        'div.vl-buttons',
        button(W.media.take, () => this.take(video, dialog), 'vl-primary'),
        button(W.media.cancel, () => dialog.close(), 'vl-secondary'),
      ),
    );
    dialog.addEventListener('close', () => {
      stream.getTracks().forEach((t) => t.stop());
      dialog.remove();
    });
    this.node.append(dialog);
    dialog.showModal();
  }

  take(video, dialog) {
    const canvas = h('canvas', { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext('2d').drawImage(video, 0, 0);
    const type = 'image/jpeg';
    const taken = (blob) => {
      dialog.close();
      this.add([new File([blob], 'camera.jpg', { type })]);
    };
    canvas.toBlob(taken, type, 0.9);
  }
}
