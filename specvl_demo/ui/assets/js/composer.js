/* The scene composer for pairs that know drawn scenes: nine places, a palette, a ground, or a scene at random.
   Makes a JSON description; the server draws it. */

import { h, put, icon, segmented } from './dom.js';
import { W } from './words.js';

export class Composer {
  /** scene: what can be drawn, {kinds, colours {name: css}, sizes, places, grounds {name: css}}. */
  constructor(scene, api, ondraw) {
    Object.assign(this, { scene, api, ondraw });
    this.node = h('dialog', {
      class: 'vl-dialog vl-composer',
      'aria-labelledby': 'vl-composer-title',
    });
    if (!scene) return;
    this.things = new Map();
    this.brush = {
      kind: scene.kinds[0],
      colour: Object.keys(scene.colours)[0],
      size: scene.sizes.at(-1),
    };
    this.ground = Object.keys(scene.grounds)[0];
    this.build();
  }

  build() {
    const { scene } = this;
    this.cells = scene.places.map((place) =>
      h('button', {
        type: 'button',
        class: 'vl-cell',
        'aria-label': place,
        on: { click: () => this.place(place) },
      }),
    );
    this.grid = h(
      'div',
      { class: 'vl-cells', role: 'group', 'aria-label': W.composer.places },
      this.cells,
    );
    const kinds = h(
      'select',
      {
        'aria-label': W.composer.kind,
        on: {
          change: () => {
            this.brush.kind = kinds.value;
          },
        },
      },
      scene.kinds.map((k) => h('option', { value: k, text: k })),
    );
    const colours = h(
      'div',
      { class: 'vl-colours', role: 'radiogroup', 'aria-label': W.composer.colour },
      Object.entries(scene.colours).map(([name, css], i) =>
        h(
          'label',
          { title: name },
          h('input', {
            type: 'radio',
            name: 'vl-colour',
            value: name,
            checked: i === 0,
            'aria-label': name,
            on: {
              change: () => {
                this.brush.colour = name;
              },
            },
          }),
          h('i', { style: { background: css } }),
        ),
      ),
    );
    const grounds = h(
      'select',
      {
        'aria-label': W.composer.ground,
        on: {
          change: () => {
            this.ground = grounds.value;
            this.show();
          },
        },
      },
      Object.keys(scene.grounds).map((g) =>
        h('option', { value: g, text: W.composer.groundOf(g) }),
      ),
    );
    this.count = h('p', { class: 'vl-help', role: 'status' });
    this.use = h('button', {
      type: 'button',
      class: 'vl-primary',
      text: W.composer.draw,
      on: { click: () => this.draw(this.describe()) },
    });
    this.node.append(
      h('h2', { id: 'vl-composer-title', text: W.composer.title }),
      h('p', { class: 'vl-help', text: W.composer.help }),
      h(
        'div',
        { class: 'vl-brush' },
        kinds,
        segmented(
          W.composer.size,
          scene.sizes.map((s) => [s, s]),
          this.brush.size,
          (s) => {
            this.brush.size = s;
          },
        ),
        grounds,
      ),
      colours,
      this.grid,
      this.count,
      h(
        'div',
        { class: 'vl-buttons' },
        this.use,
        h(
          'button',
          { type: 'button', class: 'vl-secondary', on: { click: () => this.draw(null) } },
          icon('dice'),
          W.composer.random,
        ),
        h('button', {
          type: 'button',
          class: 'vl-secondary',
          text: W.composer.cancel,
          on: { click: () => this.node.close() },
        }),
      ),
    );
    this.show();
  }

  open() {
    this.node.showModal();
  }

  /** Put the brush's object into a place; once more takes it away. */
  place(place) {
    if (this.things.has(place)) this.things.delete(place);
    else this.things.set(place, { ...this.brush, place });
    this.show();
  }

  show() {
    this.grid.style.background = this.scene.grounds[this.ground];
    this.scene.places.forEach((place, i) => {
      const thing = this.things.get(place);
      this.cells[i].replaceChildren(
        thing
          ? h(
              'span',
              { class: thing.size, style: { '--c': this.scene.colours[thing.colour] } },
              h('i'),
              h('small', { text: thing.kind }),
            )
          : '',
      );
      this.cells[i].setAttribute(
        'aria-label',
        thing ? W.composer.filled(place, thing) : W.composer.free(place),
      );
    });
    put(this.count, W.composer.count(this.things.size));
    this.use.disabled = !this.things.size;
  }

  describe() {
    return { ground: this.ground, objects: [...this.things.values()] };
  }

  /** Let the server draw a description, or anything it likes. */
  async draw(description) {
    const item = await this.api.scene(description);
    if (item.problem) {
      put(this.count, item.problem);
      return;
    }
    this.ondraw({ ...item, kind: 'image' }); // `scene` says what it was drawn from
    this.node.close();
  }
}
