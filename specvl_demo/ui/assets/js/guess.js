/* A game made of the recorded races: the visitor picks the next word among a few, against the drafter; the target's own
   choice decides. Needs no model. */

import { backClosesDialog } from './back.js';
import { button, fmt, h, put } from './dom.js';
import { children } from './fold.js';
import { Race } from './race.js';
import { stills } from './tiles.js';
import * as trace from './trace.js';
import { W } from './words.js';

const TURNS = 8;
const LEAST = 4; // turns that a race must give to be played
const MOST = 4; // words to choose from
const WORD = /^ ?\p{L}[\p{L}\p{N}'-]+$/u;
const WORTH = /^ ?\p{Ll}\p{L}{2}/u; // not how a sentence begins, which no picture tells

/** Places of a lane's answer where the next word can be guessed, those where the target was least sure: [{at, target,
 *  drafter, prob, probs}]; probs: of the words to choose from, by the alphabet, the target's where it is recorded. */
export function turns(lane) {
  const found = new Map();
  lane.tokens.forEach((token, at) => {
    const { tree, path, candidates } = lane.rounds[token.round];
    const drafted = tree.texts?.[children(tree)[path[token.at]]?.[0]] ?? '';
    const begins = (text) => WORD.test(text) && text.startsWith(' ') === at > 0;
    const listed = candidates?.[token.at].filter(({ text }) => begins(text)) ?? [];
    const own = listed.find(({ id }) => id === token.id);
    const whole = !/^[\p{L}\p{N}'-]/u.test(lane.tokens[at + 1]?.text ?? '');
    if (!own || !whole || token.origin === 'relaxed') return;
    if (!WORTH.test(own.text) || !begins(drafted)) return;
    const [target, drafter] = [own.text.trim(), drafted.trim()];
    const known = new Map(listed.map(({ text, prob }) => [text.trim(), prob]));
    const words = [...new Set([target, drafter, ...known.keys()])].slice(0, MOST);
    if (words.length < 3 || found.get(target)?.prob <= own.prob) return;
    words.sort((a, b) => a.localeCompare(b));
    const probs = new Map(words.map((word) => [word, known.get(word)]));
    found.set(target, { at, target, drafter, prob: own.prob, probs });
  });
  const least = [...found.values()].sort((a, b) => a.prob - b.prob).slice(0, TURNS);
  return least.sort((a, b) => a.at - b.at);
}

export class Guess {
  /** watch(example): show the race of an example on the page. */
  constructor(catalog, watch) {
    this.examples = catalog.examples.filter((e) => e.trace && !e.fails);
    const place = (tag, name, more = {}) => h(tag, { class: `vl-guess-${name}`, ...more });
    this.pictures = place('div', 'pictures');
    this.question = h('p.vl-guess-question');
    this.text = place('p', 'text', { 'aria-live': 'polite' });
    this.options = place('div', 'options', { role: 'group', 'aria-label': W.guess.pick });
    this.result = place('p', 'result', { role: 'status' });
    this.score = place('p', 'score');
    this.next = button(W.guess.next, () => this.ask(this.turn + 1), 'vl-primary');
    this.other = button(W.guess.other, () => this.play(this.number + 1), 'vl-secondary');
    const close = button(W.close, () => this.node.close(), 'vl-secondary');
    const show = () => {
      this.node.close();
      if (this.example) watch(this.example);
    };
    this.watch = button(W.guess.watch, show, 'vl-secondary');
    const pick = (e) => this.options.children[Number(e.key) - 1]?.click();
    this.node = h(
      'dialog.vl-guessing',
      { 'aria-label': W.guess.title, on: { keydown: pick } },
      h('h2', W.guess.title),
      h('p.vl-help', W.guess.help, h('span.vl-keys', W.guess.keys)),
      this.pictures,
      h('div', this.question, this.text, this.options, this.result, this.score),
      h('div.vl-buttons', this.next, this.other, this.watch, close),
    );
    this.entered = backClosesDialog(this.node);
  }

  /** Begin with a race that is over, else with an example, or with the first that can be played. */
  open(race) {
    this.node.showModal();
    this.entered();
    const at = this.examples.findIndex((e) => e.id === race.meta.example);
    const own = at < 0 && race.finished && race.focused;
    if (own && this.begin(own, race.meta.shown, race.meta.question)) {
      Object.assign(this, { number: -1, example: null });
      return null;
    }
    return this.play(Math.max(0, at));
  }

  /** Play on a lane; false where it gives too few turns. */
  begin(lane, pictures, question) {
    const found = turns(lane);
    if (found.length < LEAST) return false;
    Object.assign(this, { lane, turns: found, points: { you: 0, drafter: 0 } });
    this.pictures.replaceChildren(...stills(pictures));
    put(this.question, question);
    this.ask(0);
    return true;
  }

  /** The example of a number, counted around, or the next one that gives enough turns. */
  async play(number) {
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
      if (this.begin(race.focused, race.meta.shown, this.example.question)) return;
    }
    put(this.result, W.guess.none);
  }

  ask(turn) {
    this.turn = turn;
    const now = this.turns[turn];
    const written = this.lane.tokens.slice(0, now?.at).map(({ text }) => text);
    const gap = h('span.vl-gap', { role: 'img', 'aria-label': W.guess.pick });
    this.text.replaceChildren(written.join('').trimEnd(), now ? gap : '');
    this.text.scrollTop = this.text.scrollHeight;
    const options = [...(now?.probs.keys() ?? [])].map((word, i) => {
      const node = button('', () => this.pick(word), 'vl-secondary');
      node.append(h('kbd', i + 1), h('span', word), h('small'));
      return node;
    });
    this.options.replaceChildren(...options);
    put(this.result, now ? '' : W.guess.over(this.points, turn));
    this.next.hidden = true;
    this.watch.hidden = Boolean(now);
    put(this.score, W.guess.score(this.points, turn, this.turns.length));
    (options[0] ?? this.other).focus();
  }

  /** The visitor's word, once; then what drafter and target took. */
  pick(chosen) {
    if (!this.next.hidden) return;
    const { probs, target, drafter } = this.turns[this.turn];
    this.points.you += chosen === target;
    this.points.drafter += drafter === target;
    [...probs].forEach(([word, prob], i) => {
      const node = this.options.children[i];
      const by = Object.entries({ target, drafter, you: chosen }).filter(([, one]) => one === word);
      node.classList.add(word === target ? 'right' : word === chosen ? 'wrong' : 'other');
      node.setAttribute('aria-disabled', 'true');
      const names = by.map(([who]) => W.guess.by[who]);
      put(node.lastChild, [...names, fmt.percent(prob)].join(' · '));
    });
    put(this.result, W.guess.result(chosen, target, drafter));
    put(this.score, W.guess.score(this.points, this.turn + 1, this.turns.length));
    this.next.hidden = false;
    this.next.focus();
  }
}
