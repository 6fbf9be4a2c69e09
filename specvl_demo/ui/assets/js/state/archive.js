/* The visitor's own races, which this browser keeps, and traces from disk. Events: 'change';
   'problem' sentence: a trace cannot be opened. */

import { Emitter } from './emitter.js';
import * as kept from './keep.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

/** @import { Race } from './race.js' */
/** @import { KeptRace, Parts } from './types.js' */

/** The races that this browser keeps, and what opens a trace. */
export class Archive extends Emitter {
  /** The newest first. @type {KeptRace[]} */
  runs = [];

  /** @param {Parts} parts */
  constructor(parts) {
    super();
    this.parts = parts;
  }

  /** Keep a race, in later visits too. @param {Race} race */
  keep(race) {
    const { shown, ...meta } = race.meta; // the pictures are in the records
    const lanes = race.list.map((lane) => lane.begin.title);
    const run = { records: trace.recordsOf(race), meta, lanes, at: Date.now() };
    kept.keepRun(run);
    this.runs.unshift(run);
    this.emit('change');
  }

  /** Read what earlier visits kept. */
  async load() {
    this.runs = await kept.runs();
    this.emit('change');
  }

  /** Remove all that this browser keeps. */
  async forget() {
    await kept.forget();
    this.runs = [];
    this.emit('change');
  }

  /** Ask the server how the lanes of a trace compare; {problem} if it finds the trace unsound.
   *  @param {File} file */
  async compared(file) {
    const { upload, server } = this.parts.api;
    const sent = await upload(file).catch(() => null);
    const remarks = sent && (await server.compare_trace(sent.path).catch(() => null));
    return remarks ?? { problem: await this.parts.runner.reason(W.trace.notRead) };
  }

  /** Open a trace from the visitor's disk, or from an address on this server. Returns what is wrong
   *  with it, with its line. @param {File | undefined} file @param {string} [from] */
  async open(file, from) {
    if (!file) return '';
    const compared = await this.compared(file);
    const problem = compared.problem ? W.trace.wrong(file.name, compared.problem) : '';
    this.emit('problem', problem);
    if (problem) return problem;
    const records = trace.parse(await file.text());
    const begin = trace.first(records);
    const question = begin.notes?.question || file.name;
    const meta = { question, machine: begin.device, file: file.name, compared, from };
    this.parts.stage.show(records, { source: 'recorded', ...meta }, true);
    return problem;
  }
}
