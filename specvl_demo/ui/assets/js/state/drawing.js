/* How much the page draws while lanes compute. Where its browser shares the machine with the engine, every frame takes
   from what is measured: so the cost of drawing is measured first, as the processor seconds that the server sees and
   the frames that come late, while the landing race is played. What was not drawn meanwhile is played back from the
   record afterwards. */

/** Milliseconds between two passes of text, and of tree, inspector and charts; and how often a second the server sends. */
export const PACES = {
  full: { text: 0, heavy: 250, hz: 30 },
  steady: { text: 200, heavy: 1000, hz: 5 },
  calm: { text: 200, heavy: Infinity, hz: 5 },
  undrawn: { text: Infinity, heavy: Infinity, hz: 1 },
};
const CHEAP = 0.04; // share of the machine that drawing all may take for all to be drawn
const FAIR = 0.1;
const LATE_MS = 50; // a frame that comes so long after the one before is late
const MOST_LATE = 0.2; // share of the frames
const LOOK_MS = 3000; // so long is looked

/** The pace for a share of the machine that drawing everything takes, and the share of frames that came late. */
export function paceFor(share, late) {
  if (share <= CHEAP && late <= MOST_LATE) return 'full';
  return share <= FAIR ? 'steady' : 'calm';
}

export class Drawing {
  /** drawn(): the server's {seconds, cores}. Until it is measured, little is drawn. */
  constructor(drawn) {
    this.drawn = drawn;
    this.name = 'calm';
  }

  /** Measure while everything is drawn; `going()` says whether it still is. */
  async measure(going) {
    const [before, began] = [await this.drawn(), performance.now()];
    const late = await frames(going);
    const after = await this.drawn();
    if (late === null || !going()) return;
    const seconds = (performance.now() - began) / 1000;
    this.share = (after.seconds - before.seconds) / seconds / after.cores;
    this.name = paceFor(this.share, late);
  }

  /** A race was drawn at a pace, and whoever watched took a share of the machine: too much is not drawn again. */
  learn(name, share) {
    if (share <= FAIR || name === 'undrawn') return;
    this.name = name === 'calm' ? 'undrawn' : 'calm';
  }
}

/** The share of late frames within LOOK_MS; null where it ended before. */
function frames(going) {
  return new Promise((done) => {
    const [began, gaps] = [performance.now(), []];
    let last = began;
    const frame = (now) => {
      gaps.push(now - last);
      last = now;
      if (!going()) done(null);
      else if (now - began < LOOK_MS) requestAnimationFrame(frame);
      else done(gaps.filter((gap) => gap > LATE_MS).length / gaps.length);
    };
    requestAnimationFrame(frame);
  });
}
