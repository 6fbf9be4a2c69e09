/* How a conversation goes on from the race on the page. */

import { wordsOf } from '../records/fold.js';
import { W } from '../words/words.js';

export class FollowUps {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    const { race, form, stage } = parts;
    race.on('branch', (taken) => this.branch(taken));
    form.on('fresh', () => this.anew());
    form.on('example', (example) => {
      form.setTurns([]);
      stage.example(example);
    });
  }

  /** Continue from another token than a lane wrote. @param {BranchPoint} point */
  branch({ lane, index, id, text }) {
    const { race, form } = this.parts;
    const { asked } = race.meta;
    if (!asked || form.running) return;
    const { tokens, given } = lane;
    const methods = lane === race.baseline ? asked.methods : [lane.begin.method];
    const branch = {
      lane: lane.title,
      chosen: tokens[index].text,
      taken: text,
      of: race.meta.branch?.of ?? race.name,
      before: given.text + wordsOf(tokens.slice(0, index)),
      after: wordsOf(tokens.slice(index + 1)),
    };
    const prefix = [...given.ids, ...tokens.slice(0, index).map((token) => token.id), id];
    form.setTurns(asked.history);
    form.restore({ ...asked, methods });
    form.run({ prefix, branch });
  }

  /** Show the race from which a branch was taken. */
  back() {
    const { form, race, stage } = this.parts;
    const bring = stage.wayBack(race.meta.branch?.of);
    if (bring) bring();
    else form.say(W.branch.lost, true);
  }

  /** Begin another conversation, about the last pictures. */
  anew() {
    const { form, stage } = this.parts;
    const question = form.next === 'on' ? form.request.question : '';
    const pictures = [...form.turns, form.request].map(({ media }) => media);
    form.last = null;
    form.setTurns([]);
    form.nextQuestion({ question, media: pictures.findLast((media) => media.length) });
    stage.offer();
  }

  /** Make the race part of its conversation, and await the next question. */
  follow() {
    const { form, race, stage } = this.parts;
    form.followUp = true;
    if (form.next === 'on') {
      form.turnOver();
      form.emit('focus');
    } else {
      form.followUp = false;
      form.last = null;
      form.setTurns([...(race.meta.asked?.history ?? []), stage.turn()]);
      form.nextQuestion();
    }
    stage.offer();
  }

  /** Put an earlier question back into the form, and drop what came after it.
   *  @param {number} i @param {boolean} again ask it at once */
  takeUp(i, again) {
    const { form } = this.parts;
    const { question, media } = form.turns[i];
    form.setTurns(form.turns.slice(0, i));
    form.last = null;
    form.restore({ question, media });
    if (again) form.run();
    else form.emit('focus');
  }
}
