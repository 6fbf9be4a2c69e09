/* A game made of the recorded races: the visitor picks the next word among a few, against the drafter; the target's own
   choice decides. Needs no model. */

import { h, icon, fmt, put } from './dom.js';
import { Race } from './race.js';
import { children } from './fold.js';
import { stills } from './tiles.js';
import * as trace from './trace.js';
import { W } from './words.js';

const TURNS = 8;
const LEAST = 4; // turns that a race must give to be played
const MOST = 4; // words to choose from
const WORD = /^ ?\p{L}[\p{L}\p{N}'-]+$/u;
const WORTH = /^ ?\p{Ll}\p{L}{2}/u; // not how a sentence begins, which no picture tells

/** Places of a lane's answer where the next word can be guessed, those where the target was least sure: [{at, options:
 *  [{word, prob}], target, drafter}], words in the order of the alphabet, `prob` the target's where it is recorded. */
export function turns(lane) {
  const found = new Map();
  lane.tokens.forEach((token, at) => {
    const { tree, path, candidates } = lane.rounds[token.round];
    const guess = children(tree)[path[token.at]]?.[0];
    const whole = !/^[\p{L}\p{N}'-]/u.test(lane.tokens[at + 1]?.text ?? '');
    if (guess === undefined || !candidates || token.origin === 'relaxed' || !whole) return;
    const begins = (text) => WORD.test(text) && text.startsWith(' ') === at > 0;
    const listed = candidates[token.at].filter(({ text }) => begins(text));
    const own = listed.find(({ id }) => id === token.id);
    const drafted = tree.texts?.[guess] ?? '';
    if (!own || !WORTH.test(own.text) || !begins(drafted)) return;
    const probs = new Map(listed.map(({ text, prob }) => [text.trim(), prob]));
    const words = new Set([own.text.trim(), drafted.trim(), ...probs.keys()]);
    const options = [...words].slice(0, MOST).sort((a, b) => a.localeCompare(b));
    const target = own.text.trim();
    if (options.length < 3 || found.get(target)?.prob <= own.prob) return;
    found.set(target, {
      at,
      target,
      drafter: drafted.trim(),
      prob: own.prob,
      options: options.map((word) => ({ word, prob: probs.get(word) })),
    });
  });
  return [...found.values()]
    .sort((a, b) => a.prob - b.prob)
    .slice(0, TURNS)
    .sort((a, b) => a.at - b.at);
}

export class Guess {
  /** watch(example): show the race of an example on the page. */
  constructor(catalog, watch) {
    this.examples = catalog.examples.filter((e) => e.trace && !e.fails);
    this.picture = h('div', { class: 'vl-guess-pictures' });
    this.question = h('p', { class: 'vl-question' });
    this.text = h('p', { class: 'vl-guess-text', 'aria-live': 'polite' });
    this.options = h('div', {
      class: 'vl-guess-options',
      role: 'group',
      'aria-label': W.guess.pick,
    });
    this.result = h('p', { class: 'vl-guess-result', role: 'status' });
    this.score = h('p', { class: 'vl-guess-score' });
    const tool = (text, fn, kind = 'vl-secondary') =>
      h('button', { type: 'button', class: kind, text, on: { click: fn } });
    this.next = tool(W.guess.next, () => this.ask(this.turn + 1), 'vl-primary');
    this.other = tool(W.guess.other, () => this.play(this.number + 1));
    this.watch = tool(W.guess.watch, () => {
      this.node.close();
      watch(this.example);
    });
    this.node = h(
      'dialog',
      {
        class: 'vl-guessing',
        'aria-label': W.guess.title,
        on: { keydown: (e) => this.options.children[Number(e.key) - 1]?.click() },
      },
      h(
        'header',
        {},
        h('h2', { text: W.guess.title }),
        h(
          'button',
          {
            type: 'button',
            class: 'vl-tool',
            'aria-label': W.guess.close,
            on: { click: () => this.node.close() },
          },
          icon('close'),
        ),
      ),
      h('p', { class: 'vl-help', text: W.guess.help }),
      this.picture,
      h('div', {}, this.question, this.text, this.options, this.result, this.score),
      h('div', { class: 'vl-buttons' }, this.next, this.other, this.watch),
    );
  }

  /** Begin with an example, or with the first that can be played. */
  async open(id) {
    this.node.showModal();
    await this.play(
      Math.max(
        0,
        this.examples.findIndex((e) => e.id === id),
      ),
    );
  }

  /** The example of a number, counted around, or the next one that gives enough turns. */
  async play(number) {
    this.options.replaceChildren();
    put(this.result, '');
    for (let tried = 0; tried < this.examples.length; tried += 1) {
      this.number = (number + tried) % this.examples.length;
      this.example = this.examples[this.number];
      const race = new Race();
      try {
        for (const record of await trace.fetched(this.example.trace)) race.take(record);
      } catch (fault) {
        put(this.result, fault.message);
        return;
      }
      this.lane = race.focused;
      this.turns = turns(this.lane);
      if (this.turns.length >= LEAST) {
        this.points = { you: 0, drafter: 0 };
        this.picture.replaceChildren(...stills(race.meta.shown));
        put(this.question, this.example.question);
        this.ask(0);
        return;
      }
    }
    put(this.result, W.guess.none);
  }

  ask(turn) {
    this.turn = turn;
    const over = turn >= this.turns.length;
    const { points, turns: all } = this;
    const at = over ? this.lane.tokens.length : all[turn].at;
    const written = this.lane.tokens.slice(0, at).map((token) => token.text);
    this.text.replaceChildren(
      written.join('').trimEnd(),
      over ? '' : h('span', { class: 'vl-gap', role: 'img', 'aria-label': W.guess.gap }),
    );
    this.options.replaceChildren(
      ...(over ? [] : all[turn].options.map((o, i) => this.option(o, i))),
    );
    this.text.scrollTop = this.text.scrollHeight;
    put(this.result, over ? W.guess.over(points, all.length) : '');
    this.next.hidden = true;
    this.watch.hidden = !over;
    this.tell(turn);
    (over ? this.other : this.options.firstChild).focus();
  }

  option({ word }, i) {
    return h(
      'button',
      { type: 'button', class: 'vl-secondary', on: { click: () => this.pick(i) } },
      h('kbd', { text: i + 1 }),
      h('span', { text: word }),
      h('small', {}),
    );
  }

  /** The visitor's word, once; then what drafter and target took. */
  pick(chosen) {
    if (!this.next.hidden) return;
    const { options, target, drafter } = this.turns[this.turn];
    const { word } = options[chosen];
    this.points.you += word === target;
    this.points.drafter += drafter === target;
    options.forEach((option, i) => {
      const button = this.options.children[i];
      const own = option.word === target;
      const by = [own && 'target', option.word === drafter && 'drafter', i === chosen && 'you'];
      button.className = `vl-secondary ${own ? 'right' : i === chosen ? 'wrong' : ''}`;
      button.setAttribute('aria-disabled', 'true');
      const names = by.filter(Boolean).map((name) => W.guess.by[name]);
      put(button.lastChild, [...names, fmt.percent(option.prob)].join(' · '));
    });
    put(this.result, W.guess.result(word, target, drafter));
    this.next.hidden = false;
    put(this.next, this.turn + 1 < this.turns.length ? W.guess.next : W.guess.end);
    this.tell(this.turn + 1);
    this.next.focus();
  }

  tell(played) {
    put(this.score, W.guess.score(this.points, played, this.turns.length));
  }
}
