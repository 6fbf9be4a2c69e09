/* State that views listen to. */

export class Emitter extends EventTarget {
  /** @param {string} type @param {any} [detail] */
  emit(type, detail = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** @param {string} types @param {(detail: any, type: string) => void} fn */
  on(types, fn) {
    for (const type of types.split(' '))
      this.addEventListener(type, (e) => fn(/** @type {CustomEvent} */ (e).detail, type));
  }
}
