/* What views are given, under short names, and the shapes of what they make. */

export {};

declare global {
  type Archive = import('../state/archive.js').Archive;
  type Bench = import('../state/bench.js').Bench;
  type Files = import('../state/files.js').Files;
  type FollowUps = import('../state/followups.js').FollowUps;
  type Form = import('../state/form.js').Form;
  type Painter = import('./paint.js').Painter;
  type Replay = import('../state/replay.js').Replay;
  type Stage = import('../state/stage.js').Stage;

  /** A chart: what it is called, what its axes are, and what it draws. */
  interface ChartSpec {
    id: string;
    title: string;
    help: string;
    /** Names of the axes. */
    x: string;
    y: string;
    /** x are whole numbers. */
    whole?: boolean;
    /** The steps in which the x axis grows. */
    xunit?: number;
    build(race: any, colours: Colours): Drawing | null;
    /** A point was clicked. */
    click?(race: any, point: { x: number }): void;
  }

  /** What a chart draws now; without traces, `note` says why there is nothing yet. */
  interface Drawing {
    /** As Plotly takes them. */
    traces?: any[];
    shapes?: any[];
    legend?: LegendEntry[];
    /** A sentence below the legend. */
    note?: string | false;
    /** A sentence for screen readers. */
    say?: string;
    xmin?: number;
    xmax?: number;
    /** Where x ends for good; null while that is unknown. */
    xend?: number | null;
    ymin?: number;
    ymax?: number;
  }

  /** dash: how its line is drawn, or the sign of its points; fill: it is an area. */
  interface LegendEntry {
    name: string;
    colour?: string;
    dash?: string;
    fill?: boolean;
    help?: string;
  }

  /** The theme's colours by name; of lanes and series by number. */
  interface Colours {
    muted: string;
    line: string;
    draft: string;
    relaxed: string;
    shade: string;
    lanes: string[];
    series: string[];
  }

  /** What the buttons around a race do: save it as one of `saves`, and take up what is offered. */
  interface Actions {
    save(as: string): void;
    saves(): string[];
    [offer: string]: any;
  }

  /** A parameter to be set in a field. */
  interface Param {
    key: string;
    kind: string;
    title: string;
    help?: string;
    default: any;
    /** The value in the method's paper. */
    paper?: any;
    min?: number;
    max?: number;
    /** [value, title] */
    choices?: any[][];
    /** "auto" is a value too. */
    auto?: boolean;
    /** Of a set: what stands between its values. */
    joined?: string;
  }
}
