/* State that views listen to. */

/** @template {Events} [Known=any] */
export class Emitter extends EventTarget {
  /** @param {keyof Known & string} type @param {any} [detail] */
  emit(type, detail = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** Tell what is happening, or what is wrong. @param {string} text */
  say(text, wrong = false) {
    this.emit('say', { text, wrong });
  }

  /** Listen to events of these types, which spaces separate.
   *  @param {string} types @param {(detail: any, type: string) => void} fn */
  on(types, fn) {
    for (const type of types.split(' '))
      this.addEventListener(type, (e) => fn(/** @type {CustomEvent} */ (e).detail, type));
  }
}
