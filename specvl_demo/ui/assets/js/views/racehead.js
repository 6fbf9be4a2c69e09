/* Where the race comes from, what was asked, its replay, what it can be kept as. */

import { button, h, icon, iconButton, put, refill, slider, thumbnail } from './dom.js';
import { W, fmt } from '../words/words.js';

const STEPS = 1000; // of a replay's slider

/** @param {Actions} on */
export function raceHead(race, replay, on) {
  const badge = h('span.vl-badge');
  const asked = h('p.vl-question', { tabindex: '0' });
  const pictures = h('span.vl-question-media');
  const saving = saveMenu(on.save, on.saves);
  race.on('reset lane begin end', (_, type) => {
    const { file, machine, question, recorded, source, shown = [] } = race.meta;
    const over = race.whole;
    const origins = {
      recorded: file ? W.run.opened : W.run.recorded,
      live: over ? W.run.yours : W.run.live,
      ended: W.run.yours,
      saved: W.run.saved,
    };
    badge.className = `vl-badge ${over ? '' : (source ?? '')}`;
    badge.title = source === 'recorded' ? W.run.recordedOn(machine, recorded) : '';
    put(badge, origins[source] ?? '');
    saving.hidden = !over; // what is still written cannot be kept
    put(asked, source ? question || W.chat.nothing : '');
    const drawable = shown.filter(({ frames }) => frames[0]);
    if (type !== 'reset' && drawable.length === pictures.children.length) return;
    const picture = ({ frames, name }) => {
      const title = frames.length > 1 ? W.patches.frames(frames.length) : name;
      return thumbnail({ url: frames[0], name }, { title });
    };
    refill(pictures, drawable.map(picture));
  });
  return h('div.vl-race-head', badge, pictures, asked, player(replay), saving);
}

function player(replay) {
  const { race } = replay;
  const toggle = iconButton('play', W.player.play, () => replay.toggle(), 'vl-round');
  const keydown = (e) => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[e.key];
    if (!by) return;
    e.preventDefault();
    replay.turn(by);
  };
  const scrub = (step) => replay.scrub(step / STEPS);
  const scrubber = slider(W.player.slider, STEPS, scrub, { keydown });
  const time = h('output.vl-time');
  const turn = () => replay.setStretched(!replay.stretched);
  const speed = button('', turn, 'vl-small vl-speed', { title: W.player.speedHelp });
  const group = { role: 'group', label: W.player.title };
  const node = h('div.vl-player', group, toggle, scrubber, time, speed);
  const show = () => {
    const { playing, stretch, stretched } = replay;
    const { duration } = race;
    node.hidden = !(duration > 0 && race.ended);
    if (node.hidden) return;
    const head = race.head ?? duration;
    scrubber.value = Math.round((STEPS * head) / duration);
    scrubber.ariaValueText = fmt.seconds(head);
    put(time, `${head.toFixed(2)} / ${duration.toFixed(2)} s`);
    put(speed, stretched ? W.player.shown(stretch) : W.player.trueSpeed);
    speed.hidden = stretch === 1;
    const does = playing ? 'pause' : 'play';
    // The icon is made anew only where it differs: this runs in every frame.
    if (toggle.title === W.player[does]) return;
    toggle.replaceChildren(icon(does));
    toggle.title = toggle.ariaLabel = W.player[does];
  };
  replay.on('change', show);
  race.on('reset end head lane begin', show);
  show();
  return node;
}

function saveMenu(onsave, kinds) {
  const open = (on) => {
    if (on) list.replaceChildren(...kinds().map(choice));
    list.hidden = !on;
    opener.ariaExpanded = on;
  };
  const saves = { sign: 'save', 'aria-expanded': 'false' };
  const opener = button(W.run.save, () => open(list.hidden), 'vl-small', saves);
  const close = () => {
    open(false);
    opener.focus();
  };
  const choice = (as) =>
    button(W.run.saveAs[as], () => {
      close();
      onsave(as);
    });
  const list = h('div.vl-card.vl-menu', { hidden: true });
  const keydown = (e) => e.key === 'Escape' && close();
  const focusout = (e) => e.currentTarget.contains(e.relatedTarget) || open(false);
  return h('span.vl-menu-box', { keydown, focusout }, opener, list);
}
