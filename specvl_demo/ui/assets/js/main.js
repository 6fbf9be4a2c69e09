/* The page: makes what holds state and what draws, and connects them. */

import { Archive } from './state/archive.js';
import { Bench } from './state/bench.js';
import { Drawing, PACES } from './state/drawing.js';
import { FollowUps } from './state/followups.js';
import { Form } from './state/form.js';
import * as link from './state/link.js';
import { Live } from './state/live.js';
import { Race } from './state/race.js';
import { Replay } from './state/replay.js';
import { Runner } from './state/runner.js';
import { Sharing } from './state/sharing.js';
import { Stage } from './state/stage.js';
import { Visit } from './state/visit.js';
import { plotly } from './views/chart.js';
import { compareView } from './views/compareview.js';
import { conversation } from './views/conversation.js';
import { button, download, h } from './views/dom.js';
import { formView } from './views/formview.js';
import { learnView } from './views/learnview.js';
import { Painter } from './views/paint.js';
import { raceView } from './views/raceview.js';
import { raceList } from './views/racelist.js';
import { shrink } from './views/shrink.js';
import { Tabs } from './views/tabs.js';
import { topLine } from './views/topline.js';
import { W } from './words/words.js';

/** Called once: fill an element with the page as its address or the last visit asks.
 *  @param {HTMLElement} root @param {Api} api */
export async function mount(root, api) {
  // So that no race has to wait for it; without it, all but charts works.
  const drawing = plotly(api.url('plotly')).catch(() => null);
  const catalog = await api.server.read_catalog();
  const upload = (...sent) => api.upload(catalog.visit, ...sent);
  const page = new Page(root, { ...api, upload }, catalog);
  Object.assign(window, { specvl: page });
  await Promise.all([page.visit.start(page.tabs), drawing]);
  page.visit.ready = true;
  return page;
}

class Page {
  constructor(root, api, catalog) {
    this.root = root;
    this.api = api;
    this.catalog = catalog;
    this.makeState();
    this.makeViews();
    this.build();
    this.connect();
  }

  /** What holds state: none of it knows what draws it. */
  makeState() {
    const { api, catalog } = this;
    this.still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;
    this.download = download;
    this.race = new Race(catalog.rules);
    this.runner = new Runner(api);
    this.replay = new Replay(this.race);
    this.drawing = new Drawing(api.server.computing_time);
    this.form = new Form(catalog, api.upload, shrink, api.server.check_clip);
    this.stage = new Stage(this);
    this.archive = new Archive(this);
    this.live = new Live(this);
    this.followUps = new FollowUps(this);
    this.sharing = new Sharing(this);
    this.visit = new Visit(this);
    this.bench = new Bench(this);
  }

  /** What draws, each with the state that it shows. */
  makeViews() {
    const { api, catalog, form, followUps, stage } = this;
    const on = {
      save: (as) => this.sharing.save(as),
      saves: () => Object.keys(W.run.saveAs).filter((as) => as !== 'race' || this.race.meta.from),
      follow: () => followUps.follow(),
      undrawn: () => form.run({ undrawn: true }),
      back: () => followUps.back(),
    };
    this.painter = new Painter();
    const list = raceList(this.archive, (...run) => stage.again(...run));
    this.ask = formView(form, api.server.method_panel, list);
    this.chat = conversation(form, followUps);
    this.view = raceView({ ...this, on });
    this.compare = compareView(this.bench, catalog, this.painter);
    this.learn = learnView(catalog, this.painter, (example) => form.choose(example));
  }

  build() {
    const { ask, chat, compare, learn, view } = this;
    this.body = h('div.vl-body');
    const race = [chat, view.node];
    const contents = { race, compare: [compare], learn: [learn] };
    const shown = (name) => (name === 'compare' ? this.bench.open() : this.bench.leave());
    this.tabs = new Tabs(contents, this.body, shown);
    const main = h('div.vl-main', { tabindex: '-1' }, Object.values(this.tabs.panels));
    const skip = button(W.skip, () => main.focus(), 'vl-small vl-hidden');
    this.body.append(ask.node, main);
    const logo = h('img', { src: this.api.url('logo'), alt: '', width: 24, height: 24 });
    const parts = { skip, logo, tabs: this.tabs.node };
    const head = topLine(this.painter, this.catalog.machine, parts);
    this.frame = h('div.vl', head, this.body);
    this.root.replaceChildren(this.frame);
    this.frame.classList.toggle('embedded', link.embedded());
  }

  /** Whether the page stands as it was left. */
  get ready() {
    return this.visit.ready;
  }

  /** A view gets its own address, unless the page only begins. */
  open(name) {
    this.tabs.open(name, this.visit.ready);
  }

  /** Bring together what no part does alone. */
  connect() {
    const { ask, live, race, stage, view } = this;
    stage.on('open', (name) => {
      this.open(name);
      ask.unfold(false);
      if (this.ready && view.node.getBoundingClientRect().top < 0) view.node.scrollIntoView();
    });
    live.on('begun', (begin) => ask.loading.echo(begin));
    live.on('pace', (pace) => {
      this.frame.classList.toggle('frugal', pace !== null && pace !== 'full');
      this.painter.computing(pace && PACES[pace]);
    });
    live.on('ended', () => this.visit.keep());
    live.on('over', () => this.bench.speeds.learn(race));
    document.addEventListener('dragover', (e) => {
      if (e.dataTransfer.types.includes('Files')) e.preventDefault();
    });
    document.addEventListener('drop', (e) => this.drop(e));
  }

  /** Compare asks about all files; elsewhere a trace is opened, and others join the question. */
  drop(event) {
    const files = [...event.dataTransfer.files];
    if (!files.length) return;
    event.preventDefault();
    const file = files.find((f) => /\.jsonl?$/.test(f.name));
    if (this.body.dataset.view === 'compare') this.bench.add(files);
    else if (file) {
      this.open('race');
      this.archive.open(file);
    } else this.form.files.add(files);
  }
}
