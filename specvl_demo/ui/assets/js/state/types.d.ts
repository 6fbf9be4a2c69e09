/* What the page's state is made of, beside the records: what is asked, what can be chosen, what the server sends. */

/** A picture or clip on the server. example: the id of the example that it comes from. */
interface Media {
  path: string;
  url: string;
  name: string;
  kind: 'image' | 'video';
  example?: string;
}

/** An earlier question. from: the lane that wrote the answer, if the race was stopped. */
interface Turn {
  question: string;
  answer: string;
  media: Media[];
  from?: string | null;
}

interface Values {
  [name: string]: Scalar | undefined;
}

/** What the form asks. settings: by method, only what was changed; loading: by pair. */
interface FormRequest {
  pair: string;
  media: Media[];
  question: string;
  system: string;
  methods: string[];
  settings: { [method: string]: Values };
  sampling: Values;
  loading: { [pair: string]: Values };
  history: Turn[];
}

/** What one press of Run sends. prefix: token ids with which the answer has to begin. */
interface RunRequest extends Omit<FormRequest, 'sampling' | 'loading'> {
  baseline: true;
  prefix?: number[];
  max_new_tokens?: Scalar;
}

/** How a run is shown. without: titles of the methods left out; undrawn: nothing is drawn meanwhile. */
interface RunOptions {
  prefix?: number[];
  branch?: Branch;
  undrawn?: boolean;
}

/** The form before a run, to be brought back if it comes to nothing. */
interface Before {
  turns: Turn[];
  media: Media[];
  last: Last | null;
}

/** A run as the form hands it over. */
interface Run {
  request: RunRequest;
  without: string[];
  before: Before;
  branch?: Branch;
  undrawn?: boolean;
}

/** The question of the race on the page that another one can follow, and what it becomes then. */
interface Last {
  asked: FormRequest;
  turn: Turn;
}

/** Where an answer was continued from another token. of: the request, or the example, of that race. */
interface Branch {
  lane: string;
  chosen: string;
  taken: string;
  of: string;
  before: string;
  after: string;
}

/** When a race of an example was recorded, and on which processor. */
interface Recorded {
  when: string;
  processor?: string;
}

/** What the page knows of the race that it shows, besides its records. */
interface Meta {
  /** 'live': a visitor's own; 'ended': one that wrote nothing; 'recorded': from an example or a file;
   *  'saved': of the file that this page is. */
  source?: 'live' | 'ended' | 'recorded' | 'saved';
  question?: string;
  machine?: string;
  /** `Form.key` of the request that it answers: if it is another one than the form's, the race is outdated. */
  form?: string;
  asked?: FormRequest;
  /** The pictures that the model was shown. */
  shown?: Thumbnail[];
  /** What the pair cannot judge about the question, in a sentence. */
  scope?: string;
  branch?: Branch;
  /** How the lanes compare with AR, once the race is over. */
  compared?: Remarks;
  /** Of an example: its id, what its method cost, and when it was recorded. */
  example?: string;
  price?: string;
  recorded?: Recorded;
  /** The name of the file that it was read from, and the address of its trace on this server. */
  file?: string;
  from?: string;
  /** The names of files of the question that are lost. */
  gone?: string;
}

/** A storage of the browser; the latter is this tab's. */
type StorageArea = 'localStorage' | 'sessionStorage';

/** A race that this browser keeps. lanes: their titles; at: when it ended, in milliseconds. */
interface KeptRace {
  records: AnyRecord[];
  meta: Meta;
  lanes: string[];
  at: number;
}

/** A trained pair, as the catalog describes it. methods: true, or why one does not run here. */
interface Pair {
  id: string;
  title: string;
  available: boolean;
  device: string;
  help: string;
  reason: string;
  first: string[];
  loading: { [key: string]: { [way: string]: string | true } };
  knows: 'anything' | 'photographs' | 'scenes';
  words: string[] | null;
  describe: { image: string; images: string; video: string };
  methods: { [name: string]: string | true };
}

interface Method {
  name: string;
  title: string;
  help: string;
  lossless: boolean;
  greedy: boolean;
  expert: boolean;
}

/** A question that the page offers, with its recorded race. fails: why its answer is wrong. */
interface Example {
  id: string;
  title: string;
  pair: string;
  question: string;
  media: Media[];
  methods: string[];
  settings?: Values;
  trace: string;
  compared: Remarks;
  /** Speedups of its methods that can be believed. */
  gains: number[];
  fails?: string;
  price?: string;
  machine?: string;
  recorded?: Recorded;
}

/** What can be chosen here (ui/page/catalog.py). */
interface Catalog {
  /** Named with every upload. */
  visit: string;
  machine: string;
  pairs: Pair[];
  methods: Method[];
  papers: string[];
  about: string[];
  rules: Rules;
  examples: Example[];
  sampling: any[];
  further: any[];
  limits: {
    files: number;
    shown: number;
    lanes: number;
    turns: number;
    bytes: number;
    question: number;
    tokens: number;
    picture_types: string[];
    clip_types: string[];
    picture_detail: [number, number, number];
  };
}

/** Tokens below which a lane is not timed, and the load from which times are disturbed. */
interface Rules {
  tokens: number;
  load: number;
  drafts: number;
}

/** A token of a lane, a round, or a node that is no token of the answer. picked: by the visitor. */
interface Selected {
  lane: string;
  token?: number;
  round?: number;
  node?: number;
  picked?: boolean;
}

/** A token to continue with in place of the lane's token `index`. */
interface BranchPoint {
  lane: Lane;
  index: number;
  id: number;
  text: string;
}

/** How much is drawn while lanes compute. */
type Pace = 'full' | 'steady' | 'calm' | 'undrawn';

/** Milliseconds between two passes of text, and of tree, inspector and charts; batches a second of the server. */
interface PaceLimits {
  text: number;
  heavy: number;
  hz: number;
}

/** The processor seconds that drawing has taken so far, and the cores of the machine. */
type ComputingTime = () => Promise<{ seconds: number; cores: number }>;

/** What can come next: 'follow', another question about the same pictures; 'undrawn', the same without drawing it. */
type Offer = 'follow' | 'undrawn';

/** What Run does: 'same' asks the last question again, 'on' adds a turn to its conversation, 'new'
 *  begins another one. */
type NextTurn = 'same' | 'on' | 'new';

/** An example as it was before a file took the place of its pictures. */
type Replaced = Pick<FormRequest, 'media' | 'question' | 'pair' | 'methods' | 'settings'>;

/** What a form asks, and of what it can be asked. */
interface Asked {
  catalog: Catalog;
  request: FormRequest;
}

/** What a request asks in words. */
type Asking = Pick<FormRequest, 'pair' | 'question' | 'media'>;

/** A file on its way to the server, with the share that is sent. */
interface Pending {
  file: File;
  kind: Media['kind'];
  share: number;
}

/** A file that did not become part of the question. */
interface Refused {
  name: string;
  why: string;
}

/** Makes a picture no larger than the model sees it. */
type Shrink = (file: File) => Promise<File>;

/** What is wrong with a clip, as the server reads it; null if nothing is. */
type CheckClip = (clip: Media) => Promise<{ problem: string } | null>;

/** What hears of a run. */
interface Listener {
  status(text: string): void;
  record(record: AnyRecord): void;
}

/** As what a race can be kept; the server makes the last three. */
type Made = 'page' | 'figure' | 'pdf';
type Keepsake = 'link' | 'race' | 'trace' | Made;

/** What a link asks. example: the id of the example whose pictures it means; without: it was of others. */
interface Linked extends Partial<FormRequest> {
  example?: string;
  without?: boolean;
}

/** A form as it was left. race: the name of the one beside it, which it `fits`; left: that race still ran. */
interface KeptForm {
  request: FormRequest;
  race?: string;
  fits: boolean;
  left: boolean;
}

/** The view that is open. picked: the one that the visitor chose. */
interface Tabs {
  picked: string | null;
  open: (name: string, fresh: boolean) => void;
}

/** Where the questions of a bench come from. */
type Source = 'shipped' | 'files' | 'form';

/** A question of a bench. */
interface BenchQuestion {
  kind: string;
  question: string;
  media: Media[];
}

/** A method of a bench. colour: its number, see `coloursOf`. */
interface ReportRow {
  name: string;
  colour?: number;
}

/** A pair in a race: seconds before the first token and for each. */
interface Speed {
  before: number;
  token: number;
}

/** What `Emitter.emit` may tell, by name, and what comes with it. */
interface Events {
  /** What is happening, or what is wrong. */
  say: { text: string; wrong: boolean };
}

interface ArchiveEvents extends Events {
  change: void;
}

interface BenchEvents extends Events {
  /** Something else will be asked. */
  change: void;
  /** The number of files that were left out. */
  files: number;
  running: void;
  stopping: void;
  /** The part that is done. */
  progress: number;
  report: void;
  /** What was under way is over, or was left. */
  restored: void;
}

interface FilesEvents extends Events {
  /** Draw them anew. */
  show: void;
  /** Of those on their way. */
  progress: void;
  /** All are there. */
  sent: void;
  refused: void;
  /** The visitor changed them. coming: how many files of a choice are not looked at yet. */
  chosen: { media: Media[]; coming?: number };
}

interface FormEvents extends Events {
  /** The request was replaced. */
  update: void;
  /** The request changed. */
  change: void;
  /** The conversation changed. */
  turns: void;
  /** Why a method cannot be chosen. */
  refused: string;
  run: Run;
  stop: void;
  running: void;
  example: Example;
  /** What was wrong is over. */
  settled: void;
  /** The question is awaited. */
  focus: void;
  /** The question is answered, and can be replaced. */
  answered: void;
  /** `scope` or `scopeShown` changed. */
  scope: void;
  /** Another conversation is wanted. */
  fresh: void;
}

interface LiveEvents extends Events {
  /** How lanes are drawn while they compute; null once they are done. */
  pace: Pace | null;
  /** The first records of lanes. */
  begun: AnyRecord;
  ended: void;
  /** The race is complete. */
  over: void;
}

interface RaceEvents extends Events {
  /** Another race begins. */
  reset: void;
  lane: { lane: Lane };
  begin: { lane: Lane };
  round: { lane: Lane };
  end: { lane: Lane };
  head: void;
  select: void;
  focus: void;
  load: void;
  compared: void;
  branch: BranchPoint;
}

interface ReplayEvents extends Events {
  change: void;
}

interface StageEvents extends Events {
  notice: void;
  offers: void;
  waiting: void;
  outdated: void;
  /** The name of a view. */
  open: string;
}

/** An event of the stream (ui/serve); records come under their own kind. */
type StreamEvent =
  | { k: 'run'; record?: undefined }
  | { k: 'queue'; place: number; record?: undefined }
  | { k: 'status'; stage: string; detail?: string; record?: undefined }
  | { k: 'begin' | 'round' | 'end' | 'remarks'; record: AnyRecord }
  | { k: 'error'; text: string; code?: string; record?: undefined }
  | { k: 'done'; record?: undefined };

/** What the board component gives the page. */
interface Api {
  server: { [name: string]: (payload?: unknown) => Promise<any> };
  upload: (
    file: File,
    progress?: (share: number) => void,
  ) => Promise<{ path: string; url: string }>;
  trigger: (event: string, payload: unknown) => void;
  watch: (fn: (value: string) => void) => void;
  url: (name: string) => string;
}

/** The parts of the page's state, and what they need of the browser. */
interface Parts {
  api: Api;
  catalog: Catalog;
  race: Race;
  runner: import('./runner.js').Runner;
  replay: import('./replay.js').Replay;
  drawing: import('./drawing.js').Drawing;
  form: import('./form.js').Form;
  stage: import('./stage.js').Stage;
  archive: import('./archive.js').Archive;
  live: import('./live.js').Live;
  /** Whether the visitor wants nothing to move. */
  still: () => boolean;
  /** Offers the visitor a file. */
  download: (name: string, content: BlobPart, type?: string) => void;
}

interface Window {
  /** The drawing library, once it is loaded. */
  Plotly: any;
}
