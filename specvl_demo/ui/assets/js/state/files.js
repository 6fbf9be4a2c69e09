/* Pictures and clips of a question, checked before they are sent. */

import { Emitter } from './emitter.js';
import { keepFile } from './keep.js';
import { W, fmt } from '../words/words.js';

const MOST_REFUSED = 2; // are shown

/** @extends {Emitter<FilesEvents>} */
export class Files extends Emitter {
  /** @type {Media[]} */
  media = [];
  /** @type {Refused[]} */
  refused = [];
  /** An example's, until a file of the visitor's own took their place. @type {Media[]} */
  before = [];
  /** On their way. @type {Pending[]} */
  pending = [];
  coming = 0; // of a choice, not looked at yet

  /** @param {Catalog['limits']} limits @param {Api['upload']} upload @param {Shrink} shrink @param {CheckClip} check */
  constructor(limits, upload, shrink, check) {
    super();
    this.check = check;
    this.limits = limits;
    this.upload = upload;
    this.shrink = shrink;
  }

  /** How names of files end that can be asked about. */
  get types() {
    return [...this.limits.picture_types, ...this.limits.clip_types];
  }

  /** @param {File} file @returns {Media['kind'] | null} */
  kind(file) {
    const dot = file.name.slice(file.name.lastIndexOf('.')).toLowerCase();
    const typed = /^image\/(png|jpe?g|webp|bmp|gif)$/.test(file.type);
    if (typed || this.limits.picture_types.includes(dot)) return 'image';
    return this.limits.clip_types.includes(dot) ? 'video' : null;
  }

  /** Send files, or refuse them. @param {File[]} files */
  async add(files) {
    this.forgive();
    this.coming = files.length;
    for (const file of files) {
      this.coming -= 1;
      const kind = this.kind(file);
      const why = this.unfit(file, kind);
      if (why) this.refuse(file.name, why);
      else if (kind && !(await this.send(file, kind))) return;
    }
    if (!this.pending.length) this.emit('sent');
  }

  /** Why a file cannot be part of the question. @param {File} file @param {Media['kind'] | null} kind */
  unfit({ name, size }, kind) {
    const { bytes, files } = this.limits;
    const types = this.types.map((type) => type.slice(1).toUpperCase());
    if (!kind) return W.media.unknown(name, types.join(', '));
    if (!size) return W.media.empty(name);
    if (size > bytes) return W.media.large(name, fmt.bytes(size), fmt.bytes(bytes));
    return this.own.length + this.pending.length >= files ? W.media.many(name, files) : null;
  }

  /** @param {string} name @param {string} why */
  refuse(name, why) {
    const others = this.refused.filter((file) => file.name !== name);
    this.refused = [...others, { name, why }].slice(-MOST_REFUSED);
    this.emit('refused');
  }

  /** Take one off the list of refused files, or all. @param {Refused} [refused] */
  forgive(refused) {
    this.refused = refused ? this.refused.filter((file) => file !== refused) : [];
    this.emit('refused');
    if (refused) this.emit('chosen', { media: this.media });
  }

  /** Let go of those on their way: an example was chosen since. */
  letGo() {
    this.coming = 0;
    this.pending = [];
    this.forgive();
  }

  /** Returns whether it was not let go meanwhile. @param {File} file @param {Media['kind']} kind */
  async send(file, kind) {
    const coming = { file, kind, share: 0 };
    this.pending.push(coming);
    this.emit('show');
    const small = kind === 'image' ? await this.shrink(file).catch(() => file) : file;
    const told = (/** @type {number} */ share) => {
      coming.share = share;
      this.emit('progress');
    };
    const sent = await this.upload(small, told).catch(() => null);
    if (!this.pending.includes(coming)) return false;
    this.pending = this.pending.filter((other) => other !== coming);
    this.emit('show');
    if (sent) {
      keepFile(sent.path, small);
      this.join({ path: sent.path, url: sent.url, name: file.name, kind });
    } else this.refuse(file.name, W.media.failed(file.name));
    return true;
  }

  /** The visitor's own files. */
  get own() {
    return this.media.filter((item) => !item.example);
  }

  /** Whether the visitor brought some of them: a held-out question's come with the program. */
  get brought() {
    return this.own.some(({ path }) => !path.startsWith('examples/'));
  }

  /** Add a file of the visitor's own: an example's make way. @param {Media} item */
  join(item) {
    if (!this.own.length) this.before = this.media;
    this.choose([...this.own, item]);
  }

  /** @param {Media} item */
  remove(item) {
    this.choose(this.media.filter((other) => other !== item));
  }

  /** Set the files as the visitor wants them. @param {Media[]} media */
  choose(media) {
    this.show(media.slice(0, this.limits.files));
    this.emit('chosen', { media: this.media, coming: this.coming });
  }

  /** Set the files as the form has them. @param {Media[]} media */
  show(media) {
    this.media = media;
    this.say('');
    this.emit('show');
  }

  /** Remove a file that the browser cannot show: nor can the model, but for clips that the server can read.
   *  @param {Media} item */
  async dropBroken(item) {
    const clip = item.kind === 'video' && (await this.check(item).catch(() => null));
    const why = clip === false ? W.media.broken(item.name) : clip?.problem;
    if (!why || !this.media.includes(item)) return;
    const rest = this.media.filter((other) => other !== item);
    this.choose(rest.length ? rest : this.before);
    this.refuse(item.name, why);
  }
}
