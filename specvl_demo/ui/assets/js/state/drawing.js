/* How much the page draws while lanes compute: every frame takes from what is measured. What drawing costs is measured
   while the landing race is played. */

/** @type {Record<Pace, PaceLimits>} */
export const PACES = {
  full: { text: 0, heavy: 250, hz: 30 },
  steady: { text: 200, heavy: 1000, hz: 5 },
  calm: { text: 200, heavy: Infinity, hz: 5 },
  undrawn: { text: Infinity, heavy: Infinity, hz: 1 },
};
const CHEAP = 0.04; // share of the machine that drawing all may take
const FAIR = 0.1;
const LATE_MS = 50; // after the frame before
const MOST_LATE = 0.2; // share of the frames
const LOOK_MS = 3000; // how long frames are timed

/** @param {number} share of the machine that drawing all takes @param {number} late share of frames @returns {Pace} */
export function paceFor(share, late) {
  if (share <= CHEAP && late <= MOST_LATE) return 'full';
  return share <= FAIR ? 'steady' : 'calm';
}

export class Drawing {
  /** Until it is measured, little is drawn. @type {Pace} */
  name = 'calm';
  /** Of the machine, that drawing all takes. @type {number | undefined} */
  share;

  /** @param {ComputingTime} computingTime */
  constructor(computingTime) {
    this.computingTime = computingTime;
  }

  /** Choose the pace. @param {() => boolean} going whether all is being drawn */
  async measure(going) {
    const before = await this.computingTime();
    const began = performance.now();
    const late = await lateFrames(going);
    const after = await this.computingTime();
    if (late === null || !going()) return;
    const seconds = (performance.now() - began) / 1000;
    this.share = (after.seconds - before.seconds) / seconds / after.cores;
    this.name = paceFor(this.share, late);
  }

  /** Draw less from now on if drawing a race at this pace took too much.
   *  @param {Pace} name @param {number} share of the machine */
  learn(name, share) {
    if (share <= FAIR || name === 'undrawn') return;
    this.name = name === 'calm' ? 'undrawn' : 'calm';
  }
}

/** The share of late frames; null if `going` ends early.
 *  @param {() => boolean} going @returns {Promise<number | null>} */
function lateFrames(going) {
  return new Promise((done) => {
    const began = performance.now();
    let [frames, late] = [0, 0];
    let last = began;
    /** @param {number} now */
    const frame = (now) => {
      frames += 1;
      if (now - last > LATE_MS) late += 1;
      last = now;
      if (!going()) done(null);
      else if (now - began < LOOK_MS) requestAnimationFrame(frame);
      else done(late / frames);
    };
    requestAnimationFrame(frame);
  });
}
