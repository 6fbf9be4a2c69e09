/* The race to keep: a link, its trace, or a file that the server makes. */

import * as link from './link.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

const TRACE = 'race.trace.jsonl';
/** Name and type of files that the server makes. */
const MADE = {
  page: ['race.html', 'text/html'],
  figure: ['race.svg', 'image/svg+xml'],
  pdf: ['race.pdf', 'image/svg+xml'],
};

export class Sharing {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
  }

  /** @param {Keepsake} as */
  async save(as) {
    const written = trace.write(trace.recordsOf(this.parts.race));
    if (as === 'link') await this.link();
    else if (as === 'race') await this.openLink(link.toTrace(this.parts.race.meta.from ?? ''));
    else if (as === 'trace') this.parts.download(TRACE, written);
    else await this.make(as, written);
  }

  /** Have the server make a file of the trace. @param {Made} as @param {string} written */
  async make(as, written) {
    const { api, race, stage } = this.parts;
    stage.tell(W.run.sharing);
    const sent = await api.upload(new File([written], TRACE)).catch(() => null);
    const turns = race.meta.asked?.history ?? [];
    const earlier = turns.map(({ question, answer }) => ({ question, answer }));
    const { example } = race.meta;
    const asked = { path: sent?.path, as: as === 'page' ? as : 'figure', earlier, example };
    const made = sent && (await api.server.export_race(asked).catch(() => null));
    const problem = await deliver(this.parts, made, MADE[as], W.run.notShared);
    const told = as === 'pdf' ? W.run.printed : W.run.shared(MADE[as][0]);
    stage.tell(problem || told, problem !== '');
  }

  /** Copy a link to the form's request, and open it. */
  async link() {
    const { request, files } = this.parts.form;
    const without = files.own.length > 0 && W.run.linkWithout;
    const alone = request.history.length > 0 && W.run.linkAlone;
    await this.openLink(link.write(request), without, alone);
  }

  /** @param {string} address @param {(string | false)[]} more to tell of it */
  async openLink(address, ...more) {
    history.replaceState(history.state, '', address);
    const told = (await copy(address)) ? W.run.linked : W.run.linkInBar;
    this.parts.stage.tell([told, ...more].filter(Boolean).join(' '));
  }
}

/** Offer a file that the server `made`. Returns what went wrong: what it tells, or `failed`.
 *  @param {Parts} parts @param {any} made @param {string[]} file its name and type @param {string} failed
 *  @returns {Promise<string>} */
export async function deliver({ download, runner }, made, [name, type], failed) {
  const file = made?.url && (await fetch(new URL(made.url, document.baseURI)).catch(() => null));
  if (!file?.ok) return made?.problem ?? runner.reason(failed);
  download(name, await file.blob(), type);
  return '';
}

/** Returns whether it could be copied. @param {string} text */
const copy = (text) =>
  navigator.clipboard?.writeText(text).then(
    () => true,
    () => false,
  );
