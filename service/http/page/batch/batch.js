// Many photographs at once: a table that fills while it works, and one error budget over all. The
// browser keeps it over a reload, until it is cleared.

import { verdictOf } from "../answer.js";
import { askJson, patiently, searchWith } from "../api.js";
import { el, glyph, picture, pressTwice, save } from "../elements.js";
import { t } from "../language.js";
import { addToBatch, batchOf, forgetBatch, updateRow } from "../kept.js";
import { said } from "../service_texts.js";
import { onDecision, resumed } from "../look/decisions.js";
import { look } from "../look/looking.js";
import { brief, count, decisionSentence, fixed, percent } from "../words.js";
import { accept, sorted, stateOf } from "./budget.js";
import { batchFile } from "./csv.js";
import { report } from "./report.js";

export const MOST = 1000; // photographs
const AT_ONCE = 3; // searches
const REFRESH = 300; // ms between two looks of the table
const BUDGETS = [0.005, 0.01, 0.02, 0.05, 0.1];

const STATES = {
  look: () => t`to review`,
  failed: () => t`failed`,
  waiting: () => t`waiting`,
  accepted: () => t`accepted`,
  decided: () => t`decided`,
};

/** The batch of `gallery`, shown in `place`. `refused` receives a problem that concerns all searches,
 * such as a missing key; dialogs open `within` a part of the page; `cleared` is called when a person
 * clears it. `add(files)` adds [{ name, blob }] and searches with them, `restore()` brings back what
 * the browser keeps of it, `run()` continues with it, `stop()` ends it. */
export function openBatch(gallery, place, { refused, within, cleared }) {
  const entries = [];
  let running = null;
  let writing = 0; // entries that are on their way to the disk
  const view = batchView(entries, gallery, place, {
    within, run, stop: () => running?.abort(), clear, keep,
  });

  function enter(rows) {
    for (const row of rows) {
      const entry = { ...row, preview: URL.createObjectURL(row.blob) };
      if (row.decision) resumed(entry, gallery, row.decision);
      entries.push(entry);
    }
    view.added();
  }

  async function add(files, nOthers) {
    const given = files.slice(0, MOST - entries.length);
    view.left(files.length - given.length, nOthers);
    const blank = { answer: null, problem: null, decision: null, accepted: null };
    const rows = given.map((file) => ({ ...blank, ...file }));
    const numbers = await addToBatch(gallery.name, rows).catch(() => null);
    if (!numbers) view.unkept();
    enter(rows.map((row, i) => ({ ...row, number: numbers?.[i] ?? null })));
    run();
  }

  async function restore() {
    enter(await batchOf(gallery.name));
  }

  /** Keep what has come of an entry. */
  function keep(entry) {
    if (entry.number === null) return;
    const { number, name, answer, problem, accepted, decision: made } = entry;
    const decision = made && (({ kind, item, reviewer, at, state, number: n, problem: why }) =>
      ({ kind, item, reviewer, at, state, number: n, problem: why }))(made);
    view.writing(writing += 1);
    updateRow(gallery.name, { number, name, answer, problem, accepted, decision })
      .catch(view.unkept).finally(() => view.writing(writing -= 1));
  }

  async function work(queue, { signal }) {
    while (queue.length && !signal.aborted) {
      const entry = queue.shift();
      try {
        entry.answer = await patiently(() =>
          searchWith(gallery.name, entry.blob, entry.name.split("/").at(-1), {}, signal), signal);
        entry.problem = null;
      } catch (error) {
        if (signal.aborted) return;
        if ([0, 401].includes(error.problem?.status)) { // of each that follows, too
          running.abort();
          return refused(error);
        }
        entry.problem = error.problem?.detail ?? String(error);
      }
      keep(entry);
      view.changed();
    }
  }

  async function run() {
    running?.abort();
    const now = (running = new AbortController());
    const queue = entries.filter(({ answer, problem }) => !answer && !problem);
    view.started();
    await Promise.all(Array.from({ length: AT_ONCE }, () => work(queue, now)));
    if (now === running) view.ended();
  }

  function stop() {
    running?.abort();
    view.end();
    for (const { preview } of entries) URL.revokeObjectURL(preview);
  }

  async function clear() {
    stop();
    await forgetBatch(gallery.name).catch(() => {});
    place.replaceChildren();
    cleared();
  }

  return { gallery, add, restore, run, stop };
}

function batchView(entries, gallery, place, { run, stop, clear, keep, within }) {
  const own = gallery.maxError ?? 0.05; // the error bound that the gallery guarantees
  const state = { budget: own, threshold: null, accepted: new Set(), shown: 0, ended: false, only: "" };
  const title = el("h2.batch-title", {});
  const progress = el("progress", { value: 0, "aria-label": t`Searched` });
  const sentence = el("p.budget-sentence", { role: "status", "data-testid": "budget-sentence" });
  const promise = el("p.note", { "data-testid": "promise" });
  const outdated = el("p.warning", { hidden: true, "data-testid": "outdated" });
  const left = el("p.warning", { hidden: true, "data-testid": "left-out" });
  const kept = el("p.note", { "data-testid": "kept" }, t`This browser keeps the batch until you clear it.`);
  const budget = el("select", { id: "budget", "data-testid": "budget" },
    [...new Set([...BUDGETS, own])].sort((a, b) => a - b).map((share) =>
      el("option", { value: share, selected: share === own }, percent(share))));
  const only = el("select", { id: "only", "data-testid": "only", onchange: () => { state.only = only.value; show(); } },
    el("option", { value: "" }, t`all`), Object.entries(STATES).map(([name, words]) =>
      el("option", { value: name }, words())));
  const through = el("button.primary", {
    type: "button", "data-testid": "go-through", onclick: () => goThrough(needing()[0]),
  });
  const acceptor = el("button", { type: "button", "data-testid": "accept-shown", onclick: acceptShown });
  const stopper = el("button", { type: "button", "data-testid": "stop", onclick: () => (state.ended ? run() : stop()) });
  const clearer = el("button.quiet", { type: "button", "data-testid": "clear-batch" }, t`Clear the batch`);
  pressTwice(clearer, t`Press again to clear the batch`, clear);
  const reporter = el("button", { type: "button", "data-testid": "export-report", onclick: saveReport }, t`Export as a report`);
  const rows = new Map();
  const body = el("tbody", { onkeydown: between });
  const head = [t`Photograph`, t`Answer`, t`What to do`];
  place.replaceChildren(
    title, left, progress,
    el("p.budget", {}, el("label", { htmlFor: "budget" }, t`Share that may be wrong`), budget,
      el("label", { htmlFor: "only" }, t`Show`), only),
    sentence, promise, outdated,
    el("p.actions", {}, through, acceptor,
      el("button", { type: "button", "data-testid": "export", onclick: () => save(batchFile(order(), state), "vouch-batch.csv") }, t`Export as CSV`),
      reporter,
      stopper, clearer),
    kept,
    el("table.batch", { "data-testid": "batch" },
      el("thead", {}, el("tr", {}, head.map((words) => el("th", { scope: "col" }, words)))), body));

  const order = () => sorted(entries, state.accepted);
  const seen = () => order().filter((entry) => !state.only || stateOf(entry, state.accepted) === state.only);
  const needing = () => order().filter((entry) => stateOf(entry, state.accepted) === "look" && entry.answer.results.length);

  /** The arrow keys go from row to row. */
  function between(event) {
    const by = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const to = by && event.target.closest("tr")[by]?.querySelector("button");
    if (!to) return;
    event.preventDefault();
    to.focus();
  }

  /** Accept each row that is shown and waits for a review, without a look at it: here alone, as the
   * service learns from decisions that a person made of the pictures. */
  function acceptShown() {
    const at = new Date().toISOString();
    for (const entry of seen()) {
      if (stateOf(entry, state.accepted) !== "look" || !entry.answer.results.length) continue;
      entry.accepted = at;
      keep(entry);
    }
    show();
  }

  /** Save the rows that are shown, with their pictures. */
  async function saveReport() {
    reporter.disabled = true;
    const todoOf = (entry) => todo(entry, stateOf(entry, state.accepted));
    save(await report(seen(), gallery, sentence.textContent, todoOf), "vouch-batch.html");
    reporter.disabled = false;
  }

  /** Look at `first`, and after each decision at the next that needs it. */
  function goThrough(first) {
    if (!first?.answer?.results.length) return;
    let round = needing();
    const after = (entry) => round.slice(round.indexOf(entry) + 1).find(({ decision }) => !decision);
    look(first, gallery, {
      within, next: (entry) => {
        const following = after(entry);
        if (following) return following;
        round = needing(); // with the answers that arrived since
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
    if (wanted !== Number(budget.value)) return; // a newer request is under way
    Object.assign(state, { budget: wanted, threshold: point?.threshold ?? null });
    promise.textContent = point
      ? t`Guaranteed: at most ${percent(wanted)} wrong from a match probability of ${percent(point.threshold)} on, for photos like those of the calibration.`
      : t`The gallery guarantees no error as small as ${percent(wanted)}, so nothing is accepted automatically.`;
    show();
  }

  function show() {
    state.shown = performance.now();
    const { accepted, wrong } = accept(entries, state.budget, state.threshold);
    state.accepted = accepted;
    const states = entries.map((entry) => stateOf(entry, accepted));
    const n = (name) => states.filter((one) => one === name).length;
    const searched = entries.filter(({ answer, problem }) => answer || problem).length;
    const stale = entries.find(({ answer }) => ["stale", "drifting"].includes(answer?.bundle.calibration.status));
    outdated.textContent = stale
      ? t`Later answers are not accepted automatically: the calibration is out of date. ${said(stale.answer.bundle.calibration.reason)}` : "";
    outdated.hidden = !stale;
    title.textContent = t`${count(entries.length)} photographs`;
    Object.assign(progress, { max: entries.length, value: searched, hidden: state.ended });
    stopper.hidden = state.ended && searched === entries.length;
    stopper.textContent = state.ended ? t`Continue` : t`Stop`;
    sentence.textContent = [
      t`${count(accepted.size)} accepted automatically`,
      accepted.size ? t`expected wrong: ${wrong < 0.1 ? t`fewer than 0.1` : fixed(wrong, 1)}` : "",
      t`${count(n("look"))} to review`,
      n("decided") ? t`${count(n("decided"))} decided` : "",
      n("failed") ? t`${count(n("failed"))} failed` : "",
      searched < entries.length ? t`${count(searched)} of ${count(entries.length)} searched` : "",
    ].filter(Boolean).join(" · ");
    const left = needing().length;
    through.textContent = t`Review ${count(left)}`;
    through.disabled = left === 0;
    const bulk = state.only === "look" || !state.only ? n("look") : 0;
    acceptor.textContent = t`Accept ${count(bulk)} unseen`;
    acceptor.hidden = bulk === 0;
    for (const [entry, { update }] of rows) update(stateOf(entry, accepted));
    if (!body.matches(":focus-within")) { // a row that moves loses the focus
      const wanted = seen().map((entry) => rows.get(entry).element);
      if (wanted.length !== body.children.length || wanted.some((one, i) => body.children[i] !== one)) {
        body.replaceChildren(...wanted);
      }
    }
  }

  let due;
  const changed = () => {
    due ??= setTimeout(() => { due = null; show(); }, Math.max(0, state.shown + REFRESH - performance.now()));
  };
  budget.onchange = () => promised().catch(() => {});
  const unheard = onDecision(({ entry }) => {
    if (!rows.has(entry)) return;
    keep(entry);
    changed();
  });
  promised().catch(() => {}); // without it nothing is accepted
  return {
    changed,
    added: () => {
      for (const entry of entries) {
        if (!rows.has(entry)) rows.set(entry, row(entry, () => goThrough(entry)));
      }
      show();
    },
    left: (n, nOthers) => {
      left.hidden = !n && !nOthers;
      left.textContent = [
        n ? t`${count(n)} photographs were left out: a batch has at most ${count(MOST)}.` : "",
        nOthers ? t`${count(nOthers)} files are no images and were left out.` : "",
      ].join(" ").trim();
    },
    unkept: () => { kept.textContent = t`This browser cannot keep the batch: a reload would lose it.`; },
    writing: (n) => { kept.ariaBusy = n > 0; },
    started: () => { state.ended = false; show(); },
    ended: () => { state.ended = true; show(); },
    end: () => { unheard(); clearTimeout(due); },
  };
}

/** What has been done with an entry, or is to be. */
function todo({ decision, problem, accepted }, state) {
  if (decision) return decisionSentence(decision) + (decision.state === "failed" ? ` ${decision.problem}` : "");
  if (problem) return `${STATES.failed()}: ${problem}`;
  return accepted ? t`accepted unseen` : STATES[state]();
}

/** A row of the table, which changes when something has come of its entry. */
function row(entry, open) {
  const answer = el("td", { dir: "auto" });
  const what = el("td", {});
  const element = el("tr", { "data-testid": "batch-row" },
    el("th", { scope: "row" }, el("button.open", { type: "button", onclick: open },
      picture(entry.preview, "", true), el("span.sr", {}, t`Look at ${brief(entry.name)}`)),
    el("span.file", { dir: "auto" }, brief(entry.name))),
    answer, what);
  let before;

  function update(state) {
    const now = `${state} ${entry.decision?.at} ${entry.decision?.state} ${entry.accepted}`;
    if (now === before) return;
    before = now;
    element.dataset.state = state;
    what.textContent = todo(entry, state);
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
