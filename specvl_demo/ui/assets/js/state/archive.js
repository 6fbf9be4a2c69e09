/* The visitor's own races, which this browser keeps, and traces from disk. */

import { Emitter } from './emitter.js';
import * as kept from './keep.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** @extends {Emitter<ArchiveEvents>} */
export class Archive extends Emitter {
  /** The newest first. @type {KeptRace[]} */
  runs = [];

  /** @param {Parts} parts */
  constructor(parts) {
    super();
    this.parts = parts;
  }

  /** @param {Race} race */
  keep(race) {
    const { shown, ...meta } = race.meta; // the pictures are in the records
    const lanes = race.list.map((lane) => lane.begin.title);
    const run = { records: trace.recordsOf(race), meta, lanes, at: Date.now() };
    kept.keepRun(run);
    this.setRuns([run, ...this.runs]);
  }

  async load() {
    this.setRuns(await kept.runs());
  }

  async forget() {
    await kept.forget();
    this.setRuns([]);
    this.say(W.trace.forgotten);
  }

  /** @param {KeptRace[]} runs */
  setRuns(runs) {
    this.runs = runs;
    this.emit('change');
  }

  /** How the lanes of a trace compare; {problem} if it is unsound. @param {File} file */
  async compared(file) {
    const { upload, server } = this.parts.api;
    const sent = await upload(file).catch(() => null);
    const remarks = sent && (await server.compare_trace(sent.path).catch(() => null));
    return remarks ?? { problem: await this.parts.runner.reason(W.trace.notRead) };
  }

  /** Open a trace from disk, or `from` an address on this server. Returns what is wrong with it.
   *  @param {File} file @param {string} [from] */
  async open(file, from) {
    const compared = await this.parts.stage.latest(this.compared(file));
    if (!compared) return '';
    const problem = compared.problem ? W.trace.wrong(file.name, compared.problem) : '';
    this.say(problem, problem !== '');
    if (problem) return problem;
    const records = trace.parse(await file.text());
    const begin = trace.first(records);
    const question = begin.notes?.question || file.name;
    const meta = { question, machine: begin.device, file: file.name, compared, from };
    this.parts.stage.show(records, { source: 'recorded', ...meta }, true);
    return problem;
  }
}
