/* The race as something to keep: a link to its settings, its trace, or one file that opens in any
   browser, made by the server from the trace: a page with its charts, or a figure. */

import * as link from './link.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** @import { Parts } from './types.js' */

const TRACE = 'race.trace.jsonl';
const MADE = { page: ['race.html', 'text/html'], figure: ['race.svg', 'image/svg+xml'] };

export class Sharing {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
  }

  /** @param {'link' | 'embed' | 'trace' | 'page' | 'figure'} as */
  async save(as) {
    const written = trace.write(trace.recordsOf(this.parts.race));
    if (as === 'link') await this.link();
    else if (as === 'embed') await this.embed();
    else if (as === 'trace') this.parts.download(TRACE, written);
    else await this.make(as, written);
  }

  /** Let the server make a file of a trace. @param {'page' | 'figure'} as @param {string} written */
  async make(as, written) {
    const { api, stage } = this.parts;
    stage.tell(W.run.sharing);
    const sent = await api.upload(new File([written], TRACE)).catch(() => null);
    const turns = this.parts.race.meta.asked?.history ?? [];
    const earlier = turns.map(({ question, answer }) => ({ question, answer }));
    const asked = { path: sent?.path, as, earlier };
    const made = sent ? await api.server.export_race(asked).catch(() => null) : null;
    const file = made?.url && (await fetch(new URL(made.url, document.baseURI)).catch(() => null));
    if (!file?.ok) {
      stage.tell(made?.problem ?? (await this.parts.runner.reason(W.run.notShared)), true);
      return;
    }
    const [name, type] = MADE[as];
    this.parts.download(name, await file.blob(), type);
    stage.tell(W.run.shared(name));
  }

  /** The address of the trace on this server, if the race has one. */
  get trace() {
    const { catalog, race } = this.parts;
    const { example, from } = race.meta;
    return from ?? catalog.examples.find(({ id }) => id === example)?.trace;
  }

  /** Copy what shows the race within another page: this page, or the file that Save makes. */
  async embed() {
    const { stage } = this.parts;
    const src = this.trace ? link.toTrace(this.trace, true) : 'race.html';
    const size = 'width="100%" height="900" loading="lazy"';
    const code = `<iframe src="${src}" ${size} title="${W.name}" allow="fullscreen"></iframe>`;
    if (await copy(code)) stage.tell(this.trace ? W.run.embedded : W.run.embeddedFile);
    else stage.tell(code);
  }

  /** Put a link into the clipboard and the address bar: to a trace on this server, else to the form's request. */
  async link() {
    const { media, history: turns } = this.parts.form.request;
    const { from } = this.parts.race.meta;
    const address = from ? link.toTrace(from) : link.write(this.parts.form.request);
    history.replaceState(null, '', address);
    const copied = await copy(address);
    if (from) {
      this.parts.stage.tell(copied ? W.run.linked : W.run.linkInBar);
      return;
    }
    const sentences = [
      copied ? W.run.linked : W.run.linkInBar,
      media.some((item) => !item.example) && W.run.linkWithout,
      turns.length > 0 && W.run.linkAlone,
    ];
    this.parts.stage.tell(sentences.filter(Boolean).join(' '));
  }
}

/** Whether a text could be put into the clipboard. @param {string} text */
const copy = (text) =>
  navigator.clipboard?.writeText(text).then(
    () => true,
    () => false,
  );
