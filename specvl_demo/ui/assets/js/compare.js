/* Methods over several races, summed: what the comparison's table and scatter show. Σ tokens over Σ seconds, never a mean
   of ratios; unknown stays null. Knows folds; nothing of the page. */

import { PHASES } from './fold.js';
import { agreement, timing } from './verdict.js';

export class Tally {
  constructor() {
    this.rows = new Map();
  }

  /** Take a finished race: every lane adds to its method's row. */
  take(race) {
    const base = race.baseline;
    if (!base?.end) return;
    for (const lane of race.list) {
      if (!lane.end || lane.end.stop === 'error' || lane.end.stop === 'cancelled') continue;
      const row = this.row(lane);
      const t = lane.at(Infinity);
      const b = base.at(Infinity);
      row.races += 1;
      row.disturbed += lane !== base && timing(lane, base).kind === 'disturbed';
      row.tokens += t.tokens;
      row.rounds += t.rounds;
      row.relaxed += t.relaxed;
      for (const phase of PHASES) row[phase] += t[phase];
      row.seconds += t.clock;
      row.base_tokens += b.tokens;
      row.base_seconds += b.clock;
      row.base_rounds += b.rounds;
      this.fidelity(row, lane, base);
    }
  }

  row(lane) {
    const { method, title, lossless } = lane.begin;
    if (!this.rows.has(method)) {
      this.rows.set(method, {
        method,
        title,
        lossless,
        races: 0,
        disturbed: 0,
        same: 0,
        agreed: 0,
        compared: 0,
        first: null,
        gap: null,
        tokens: 0,
        rounds: 0,
        relaxed: 0,
        seconds: 0,
        base_tokens: 0,
        base_seconds: 0,
        base_rounds: 0,
        draft_s: 0,
        verify_s: 0,
        commit_s: 0,
        other_s: 0,
      });
    }
    return this.rows.get(method);
  }

  /** Same answer as the plain model's? Where it first differs, by how little the plain model preferred its own token. */
  fidelity(row, lane, base) {
    const { kind, at, gap, words } = agreement(lane, base);
    row.same += kind === 'same';
    row.compared += base.tokens.length;
    row.agreed += base.tokens.length * (words ?? 1);
    if (kind !== 'same' && (row.first === null || at < row.first))
      Object.assign(row, { first: at, gap });
  }

  /** Rows as they are read: speeds, ratios, shares. */
  table() {
    return [...this.rows.values()].map((r) => {
      const speed = r.seconds > 0 ? r.tokens / r.seconds : null;
      const base = r.base_seconds > 0 ? r.base_tokens / r.base_seconds : null;
      const step = r.base_rounds ? r.base_seconds / r.base_rounds : null;
      return {
        ...r,
        speed,
        tau: r.rounds ? r.tokens / r.rounds : null,
        speedup: speed && base && !r.disturbed ? speed / base : null,
        rho: Object.fromEntries(
          PHASES.map((p) => [p, step && r.rounds ? r[p] / r.rounds / step : null]),
        ),
        relaxed_share: r.tokens ? r.relaxed / r.tokens : null,
        agreement: r.compared ? r.agreed / r.compared : null,
      };
    });
  }
}

const COLUMNS = [
  'method',
  'races',
  'tau',
  'speed',
  'speedup',
  'rho_draft',
  'rho_verify',
  'rho_commit',
  'rho_other',
  'same',
  'first_difference',
  'logit_gap',
  'relaxed_share',
  'agreement',
  'paper',
];

/** The table as comma-separated values. */
export function csv(rows, published) {
  // Spreadsheets run cells that begin like a formula; an apostrophe keeps them text.
  const inert = (v) =>
    typeof v === 'string' && /^[=+\-@\t\r]/.test(v) ? `'${v}` : String(v ?? '');
  const quote = (v) =>
    /[",\r\n]/.test(inert(v)) ? `"${inert(v).replaceAll('"', '""')}"` : inert(v);
  const line = (r) => [
    r.method,
    r.races,
    r.tau,
    r.speed,
    r.speedup,
    ...PHASES.map((p) => r.rho[p]),
    r.same,
    r.first,
    r.gap,
    r.relaxed_share,
    r.agreement,
    published(r.method)?.join(' '),
  ];
  return `${[COLUMNS, ...rows.map(line)].map((cells) => cells.map(quote).join(',')).join('\n')}\n`;
}
