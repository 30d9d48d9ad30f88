// Many photographs at once: a table that fills while it works, and one error budget over all.

import { verdictOf } from "../answer.js";
import { askJson, searchWith } from "../api.js";
import { el, glyph, picture } from "../elements.js";
import { t } from "../language.js";
import { said } from "../service_texts.js";
import { onDecision } from "../look/decisions.js";
import { look } from "../look/looking.js";
import { brief, count, decisionSentence, fixed, percent } from "../words.js";
import { accept, sorted, stateOf } from "./budget.js";
import { save } from "./csv.js";

export const MOST = 500; // photographs
const AT_ONCE = 3; // searches
const TRIES = 6; // where the service is busy
const REFRESH = 300; // ms between two looks of the table
const BUDGETS = [0.005, 0.01, 0.02, 0.05, 0.1];

const STATES = {
  look: () => t`look at it`,
  failed: () => t`failed`,
  waiting: () => t`waiting`,
  accepted: () => t`accepted`,
  decided: () => t`decided`,
};

/** Search with all `files` in `gallery`, and show in `place` what comes of it. `refused` is told a
 * problem that concerns all of them, such as a missing key; dialogs open `within` a part of the page. What it answers can be stopped. */
export function runBatch(files, gallery, place, { refused, within }) {
  const entries = files.slice(0, MOST).map((blob) => ({
    name: blob.name || "pasted", blob, preview: URL.createObjectURL(blob), answer: null,
    problem: null, decision: null,
  }));
  const stopping = new AbortController();
  const view = batchView(entries, gallery, place, {
    within, stop: () => stopping.abort(), tooMany: files.length > MOST ? files.length : 0,
  });
  const queue = [...entries];

  async function work() {
    while (queue.length && !stopping.signal.aborted) {
      const entry = queue.shift();
      try {
        entry.answer = await patiently(() =>
          searchWith(gallery.name, entry.blob, entry.name, {}, stopping.signal), stopping.signal);
      } catch (error) {
        if (stopping.signal.aborted) return;
        if (error.problem?.status === 401) {
          stopping.abort();
          return refused(error);
        }
        entry.problem = error.problem?.detail ?? String(error);
      }
      view.changed();
    }
  }

  Promise.all(Array.from({ length: AT_ONCE }, work)).then(view.done);
  return {
    stop: () => {
      stopping.abort();
      view.end();
      for (const { preview } of entries) URL.revokeObjectURL(preview);
    },
  };
}

/** What `task` answers; it is tried again while the service says that it is busy. */
async function patiently(task, signal) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await task();
    } catch (error) {
      if (tried === TRIES || signal.aborted || ![429, 503].includes(error.problem?.status)) throw error;
      const wait = Math.min(30, Number(error.retryAfter) || tried);
      await new Promise((done) => setTimeout(done, 1000 * wait));
    }
  }
}

function batchView(entries, gallery, place, { stop, tooMany, within }) {
  const state = { budget: 0.01, threshold: null, promise: "", accepted: new Set(), shown: 0, ended: false };
  const progress = el("progress", { max: entries.length, value: 0, "aria-label": t`Searched` });
  const sentence = el("p.budget-sentence", { role: "status", "data-testid": "budget-sentence" });
  const promise = el("p.note", { "data-testid": "promise" });
  const outdated = el("p.warning", { hidden: true, "data-testid": "outdated" });
  const budget = el("select", { id: "budget", "data-testid": "budget" }, BUDGETS.map((share) =>
    el("option", { value: share, selected: share === state.budget }, percent(share))));
  const through = el("button.primary", {
    type: "button", "data-testid": "go-through", onclick: () => goThrough(needing()[0]),
  });
  const stopper = el("button", { type: "button", onclick: stop }, t`Stop`);
  const rows = new Map(entries.map((entry) => [entry, row(entry, () => goThrough(entry))]));
  const body = el("tbody", {}, [...rows.values()].map(({ element }) => element));
  const head = [t`Photograph`, t`Answer`, t`What to do`];
  place.replaceChildren(
    el("h2.batch-title", {}, t`${count(entries.length)} photographs`),
    tooMany ? el("p.warning", {}, t`${count(tooMany)} were given; the first ${count(MOST)} are searched with.`) : "",
    progress,
    el("p.budget", {}, el("label", { htmlFor: "budget" }, t`Share that may be wrong`), budget),
    sentence, promise, outdated,
    el("p.actions", {}, through,
      el("button", {
        type: "button", "data-testid": "export", onclick: () => save(order(), state),
      },
        t`Export as CSV`), stopper),
    el("table.batch", { "data-testid": "batch" },
      el("thead", {}, el("tr", {}, head.map((words) => el("th", { scope: "col" }, words)))), body));

  const order = () => sorted(entries, state.accepted);
  const needing = () => order().filter((entry) => stateOf(entry, state.accepted) === "look" && entry.answer.results.length);

  /** Look at `first`, and after each decision at the next that needs it. */
  function goThrough(first) {
    if (!first?.answer?.results.length) return;
    let round = needing();
    const after = (entry) => round.slice(round.indexOf(entry) + 1).find(({ decision }) => !decision);
    look(first, gallery, {
      within, next: (entry) => {
        const following = after(entry);
        if (following) return following;
        round = needing(); // of what has been answered meanwhile
        return round[0];
      },
      closed: () => {
        show();
        (through.disabled ? budget : through).focus();
      },
    });
  }

  async function promised() {
    const wanted = Number(budget.value);
    const url = `/v1/galleries/${encodeURIComponent(gallery.name)}/calibration/operating-points`;
    const { point } = await askJson(`${url}?max_error=${wanted}`);
    if (wanted !== Number(budget.value)) return; // another one is asked for already
    Object.assign(state, { budget: wanted, threshold: point?.threshold ?? null });
    promise.textContent = point
      ? t`This gallery promises at most ${percent(wanted)} wrong from a match probability of ${percent(point.threshold)} on, for photographs such as it was calibrated with.`
      : t`This gallery promises no error as small as ${percent(wanted)}, so nothing is accepted unseen.`;
    show();
  }

  function show() {
    state.shown = performance.now();
    const { accepted, wrong } = accept(entries, state.budget, state.threshold);
    state.accepted = accepted;
    const searched = entries.filter(({ answer, problem }) => answer || problem).length;
    const failed = entries.filter(({ problem }) => problem).length;
    const left = needing().length;
    const stale = entries.find(({ answer }) => ["stale", "drifting"].includes(answer?.bundle.calibration.status));
    outdated.textContent = stale
      ? t`Since then the calibration is out of date, and what was asked meanwhile is not accepted unseen. ${said(stale.answer.bundle.calibration.reason)}` : "";
    outdated.hidden = !stale;
    progress.value = searched;
    progress.hidden = stopper.hidden = state.ended;
    sentence.textContent = t`Accept ${count(accepted.size)} at ${percent(state.budget)} error; look at ${count(left)}.`
      + (accepted.size ? ` ${t`Of those accepted ${wrong < 0.1 ? t`fewer than 0.1` : fixed(wrong, 1)} are expected to be wrong.`}` : "")
      + (failed ? ` ${t`${count(failed)} could not be searched with.`}` : "")
      + (state.ended ? "" : ` ${t`${count(searched)} of ${count(entries.length)} searched.`}`);
    through.textContent = t`Go through ${count(left)}`;
    through.disabled = left === 0;
    for (const [entry, { update }] of rows) update(stateOf(entry, accepted));
    if (!body.matches(":focus-within")) { // a row that moves loses the focus
      const wanted = order().map((entry) => rows.get(entry).element);
      if (wanted.some((one, i) => body.children[i] !== one)) body.replaceChildren(...wanted);
    }
  }

  let due;
  const changed = () => {
    due ??= setTimeout(() => { due = null; show(); }, Math.max(0, state.shown + REFRESH - performance.now()));
  };
  budget.onchange = () => promised().catch(() => {});
  const unheard = onDecision(({ entry }) => rows.has(entry) && changed());
  show();
  promised().catch(() => {}); // without it nothing is accepted
  return { changed, end: unheard, done: () => { state.ended = true; show(); } };
}

/** A row of the table, which changes when something has come of its entry. */
function row(entry, open) {
  const answer = el("td", { dir: "auto" });
  const what = el("td", {});
  const element = el("tr", { "data-testid": "batch-row" },
    el("th", { scope: "row" }, el("button.open", {
      type: "button", onclick: open, "aria-label": t`Look at ${brief(entry.name)}`,
    }, picture(entry.preview, "", true)), el("span", { dir: "auto" }, brief(entry.name))),
    answer, what);
  let before;

  function update(state) {
    const now = `${state} ${entry.decision?.at} ${entry.decision?.state}`;
    if (now === before) return;
    before = now;
    element.dataset.state = state;
    const { decision, problem } = entry;
    what.textContent = decision
      ? decisionSentence(decision) + (decision.state === "failed" ? ` ${decision.problem}` : "")
      : problem ? `${STATES.failed()}: ${problem}` : STATES[state]();
    if (entry.answer) answer.replaceChildren(...answerCell(entry));
  }
  return { element, update };
}

function answerCell(entry) {
  const { verdict, results: [first] } = entry.answer;
  const { word } = verdictOf(entry.answer);
  const p = verdictOf(entry.answer).withholds ? null : first?.match_probability ?? null;
  return [
    el("span.verdict-word", { "data-verdict": verdict }, glyph(verdict), word),
    first ? el("span.first-result", {}, brief(first.label ?? first.id), p === null ? "" : `, ${percent(p)}`) : "",
  ];
}
