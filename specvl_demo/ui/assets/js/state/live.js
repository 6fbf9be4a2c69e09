/* Runs the form's request on the server and puts what comes on the page. */

import { PACES } from './drawing.js';
import { Emitter } from './emitter.js';
import { point } from '../records/highlights.js';
import * as trace from '../records/trace.js';
import { W } from '../words/words.js';

const PATIENT_S = 3; // before a stage's seconds are counted
const SHORT_S = 6; // a race that took longer was seen while it ran

/** @extends {Emitter<LiveEvents>} */
export class Live extends Emitter {
  /** @param {Parts} parts */
  constructor(parts) {
    super();
    this.parts = parts;
    const { form } = parts;
    form.on('run', (run) => this.run(run));
    form.on('stop', () => this.stop());
  }

  stop() {
    const { form, runner, stage } = this.parts;
    runner.stop();
    form.say(W.run.stopping);
    stage.setWaiting(W.run.stopping);
  }

  /** Show the race of a request; if nothing is written, what was there before. @param {Run} run */
  async run({ request, branch, undrawn, without, before }) {
    const { archive, catalog, drawing, race, form, stage } = this.parts;
    stage.coming = null;
    stage.emit('open', 'race');
    form.setRunning(true);
    form.last = null;
    const earlier = { meta: race.meta, records: trace.recordsOf(race) };
    race.clear(this.meta(request, branch));
    const names = ['ar', ...request.methods];
    const lanes = names.flatMap((name) => catalog.methods.filter((m) => m.name === name));
    race.expect(lanes, Number(request.max_new_tokens ?? catalog.limits.tokens));
    const pace = undrawn ? 'undrawn' : drawing.name;
    this.setPace(pace);
    if (without.length) stage.tell(W.ask.greedy(without), true);
    stage.compareWithForm();
    const failure = await this.follow(request, pace);
    form.setRunning(false);
    this.setPace(null);
    stage.setWaiting('');
    const written = race.list.some((lane) => lane.tokens.length);
    if (!written && failure !== null) form.undo(before);
    if (written) archive.keep(race);
    else if (earlier.records.length) {
      race.show(earlier.records, earlier.meta);
      stage.offerNext();
    } else {
      const { question, form: key } = race.meta;
      race.clear({ source: 'ended', question, form: key });
    }
    this.emit('ended');
    this.tellEnd(failure, written, pace);
  }

  /** @param {RunRequest} request @param {Branch | undefined} branch @returns {Meta} */
  meta(request, branch) {
    const { form, catalog } = this.parts;
    const pictures = request.media.filter((item) => item.kind === 'image');
    return {
      source: 'live',
      question: form.questionOf(request),
      machine: catalog.machine,
      ...form.asked,
      shown: pictures.map(({ name, url }) => ({ name, frames: [url] })),
      scope: form.scope,
      branch,
    };
  }

  /** Feed the race. Returns what failed.
   *  @param {RunRequest} request @param {Pace} pace @returns {Promise<string | null>} */
  async follow(request, pace) {
    const { form, race, stage, runner } = this.parts;
    const unseen = pace === 'undrawn' ? W.run.undrawn : '';
    let begun = false;
    let status = '';
    let since = Date.now();
    /** @param {string} text */
    const say = (text) => runner.stopping || form.say(text); // that it stops stays said
    const counting = setInterval(() => {
      const seconds = Math.round((Date.now() - since) / 1000);
      if (status.endsWith('…') && seconds >= PATIENT_S) say(W.run.waited(status, seconds));
    }, 1000);
    const failure = await runner.run(
      { ...request, hz: PACES[pace].hz },
      {
        status: (text) => {
          status = text;
          since = Date.now();
          say(text);
          stage.setWaiting(text || unseen);
        },
        record: (record) => {
          if (!begun) say(unseen);
          if (record.kind === 'begin') this.emit('begun', record);
          begun = true;
          status = '';
          race.take(record);
        },
      },
    );
    clearInterval(counting);
    return failure;
  }

  /** @param {string | null} failure @param {boolean} written whether there is an answer @param {Pace} pace */
  tellEnd(failure, written, pace) {
    const { form, race, stage } = this.parts;
    const stopped = race.list.some((lane) => lane.end?.stop === 'cancelled');
    const goesOn = stage.from ? ` ${W.chat.goesOn(stage.from)}` : '';
    const ended = written && stopped ? W.run.stopped + goesOn : '';
    stage.compareWithForm();
    form.say(failure ?? ended, failure !== null);
    if (!written && failure === null) stage.tell(`${W.run.unbegun} ${stage.notice.text}`.trim());
    else stage.offerNext();
    if (stopped) point(race);
    if (!written || failure !== null || stopped) return;
    this.emit('over');
    this.lookBack(pace);
    form.emit('answered');
  }

  /** @param {Pace | null} pace null: the lanes are done */
  setPace(pace) {
    this.parts.stage.undrawn = pace === 'undrawn';
    this.emit('pace', pace);
  }

  /** Play back a race that was hardly drawn while it ran. @param {Pace} pace */
  lookBack(pace) {
    const { race, drawing } = this.parts;
    drawing.learn(pace, Math.max(0, ...race.list.map((lane) => lane.end?.watching ?? 0)));
    const unseen = pace === 'undrawn' || (pace !== 'full' && race.duration < SHORT_S);
    if (unseen && !this.parts.still()) this.parts.replay.replay();
    else point(race);
  }
}
