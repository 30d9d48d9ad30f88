// The table of a batch, and what is done with all of it: the budget, filters, the review, exports.

import { byLine, verdictOf } from "../answer.js";
import { arrived, askJson } from "../api.js";
import { el, glyph, picture, pressTwice, save } from "../elements.js";
import { t } from "../language.js";
import { onDecision } from "../look/decisions.js";
import { look } from "../look/looking.js";
import { problemOf } from "../problem.js";
import { saidParts } from "../service_texts.js";
import { VERDICTS, brief, count, fixed, percent } from "../words.js";
import { accept } from "./budget.js";
import { batchFile } from "./csv.js";
import { STATES, sorted, stateOf, todo } from "./states.js";

export const MOST = 1000; // photographs
const REFRESH = 300; // ms between two looks of the table
const BUDGETS = [0.005, 0.01, 0.02, 0.05, 0.1];
const MOST_CHARACTERS = 80; // of a path

/** The end of a path, where the file's name is. */
const ending = (path) => {
  const characters = [...path];
  return characters.length > MOST_CHARACTERS ? `…${characters.slice(-MOST_CHARACTERS).join("")}` : path;
};

/** The view of `entries` in `place`. `run` searches on, `stop` ends that, `retry` tries again what
 * failed, `clear` forgets all, `keep` keeps what has come of an entry; `refused` receives problems. */
export function batchView(entries, gallery, place, { run, stop, retry, clear, keep, refused, within }) {
  const own = gallery.maxError ?? 0.05; // the error bound that the gallery guarantees
  const state = {
    budget: own, threshold: null, promise: "", accepted: new Set(), shown: 0, ended: false,
    line: null, // the visitor's own, null for the gallery's
    n: 0, // photographs, with those that are still to be read
    unseen: [], // entries that the last press accepted unseen
    packing: null, // a ZIP that is being made
  };
  const title = el("h2.batch-title", {});
  const progress = el("progress", { value: 0, "aria-label": t`Searched` });
  const sentence = el("p.budget-sentence", { role: "status", "data-testid": "budget-sentence" });
  const promise = el("p.note", { "data-testid": "promise" });
  const outdated = el("p.warning", { hidden: true, "data-testid": "outdated" });
  const left = el("p.warning", { hidden: true, "data-testid": "left-out" });
  const unfiltered = el("p.warning", { hidden: true, role: "status", "data-testid": "unfiltered" },
    t`The filter does not apply to a batch: each photograph is searched among all items.`);
  const shown = el("span.note", { role: "status", "data-testid": "n-shown" });
  const kept = el("p.note", { "data-testid": "kept" }, t`This browser keeps the batch until you clear it.`);
  const budget = el("select", { id: "budget", "data-testid": "budget" },
    [...new Set([...BUDGETS, own])].sort((a, b) => a - b).map((share) =>
      el("option", { value: share, selected: share === own }, percent(share))));
  const filter = (id, all, choices) => el("select", { id, "data-testid": id, onchange: filtered },
    el("option", { value: "" }, all), choices.map(([value, words]) => el("option", { value }, words)));
  const only = filter("only", t`all`, Object.entries(STATES).map(([name, words]) => [name, words()]));
  const verdict = filter("verdict-filter", t`all`, Object.entries(VERDICTS).map(([name, { word }]) => [name, word]));
  const containing = el("input", { type: "search", id: "containing", "data-testid": "containing", maxLength: 200, oninput: filtered });
  const through = el("button.primary", {
    type: "button", "data-testid": "go-through", onclick: () => goThrough(needing()[0]),
  });
  const button = (name, words, onclick) => el("button", { type: "button", "data-testid": name, onclick }, words);
  const acceptor = button("accept-shown", "", acceptShown);
  const undoer = button("undo-accept", "", undoAccept);
  const retrier = button("retry-failed", t`Try the failed ones again`, retry);
  const stopper = button("stop", "", () => (state.ended ? run() : stop()));
  const packer = button("export-zip", t`Download as ZIP`, saveZip);
  const clearer = el("button.quiet", { type: "button", "data-testid": "clear-batch" }, t`Clear the batch`);
  pressTwice(clearer, t`Press again to clear the batch`, clear);
  const rows = new Map();
  const body = el("tbody", { onkeydown: between });
  const head = [t`Photograph`, t`Answer`, t`What to do`];
  place.replaceChildren(
    title, left, unfiltered, progress,
    el("p.budget", {}, el("label", { htmlFor: "budget" }, t`Share that may be wrong`), budget),
    sentence, promise, outdated,
    el("p.budget", { role: "group", "aria-label": t`Filter` }, el("label", { htmlFor: "only" }, t`Show`), only,
      el("label", { htmlFor: "verdict-filter" }, t`Answer`), verdict,
      el("label", { htmlFor: "containing" }, t`Path or label`), containing, shown),
    el("p.actions", {}, through, acceptor, undoer, retrier,
      button("export", t`Export as CSV`, () => save(batchFile(exported()), "vouch-batch.csv")), packer, stopper, clearer),
    kept,
    el("table.batch", { "data-testid": "batch" },
      el("thead", {}, el("tr", {}, head.map((words) => el("th", { scope: "col" }, words)))), body));

  const order = () => sorted(entries, state.accepted);
  const seen = () => order().filter((entry) =>
    (!only.value || stateOf(entry, state.accepted) === only.value) &&
    (!verdict.value || judged(entry).answer?.verdict === verdict.value) && mentions(entry, containing.value.trim().toLowerCase()));
  const needing = () => seen().filter((entry) => stateOf(entry, state.accepted) === "look" && entry.answer.results.length);

  /** An entry with the verdict by the visitor's line. */
  const judged = (entry) => ({ ...entry, answer: entry.answer && byLine(entry.answer, state.line) });

  /** What the files have: the entries in their order, and which of them are accepted automatically. */
  function exported() {
    const all = order().map((entry) => [entry, judged(entry)]);
    const accepted = new Set(all.filter(([entry]) => state.accepted.has(entry)).map(([, copy]) => copy));
    return { entries: all.map(([, copy]) => copy), accepted, budget: state.budget };
  }

  function filtered() {
    state.unseen = []; // "undo" is about what is in view
    show();
  }

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
    state.unseen = needing();
    for (const entry of state.unseen) {
      entry.accepted = at;
      keep(entry);
    }
    show();
    undoer.focus();
  }

  /** Take the last such press back. */
  function undoAccept() {
    for (const entry of state.unseen) {
      entry.accepted = null;
      keep(entry);
    }
    state.unseen = [];
    show();
    acceptor.focus();
  }

  /** Pack the batch into a ZIP file, until the button is pressed again. */
  async function saveZip() {
    if (state.packing) return state.packing.abort();
    const packing = (state.packing = new AbortController());
    const told = (n) => { packer.textContent = t`Cancel (${count(n)} of ${count(entries.length)} packed)`; };
    told(0);
    try {
      const { archive } = await arrived(import("./archive.js"));
      const all = exported();
      const file = await archive(gallery, {
        ...all, table: batchFile(all), told, signal: packing.signal,
        sentences: [sentence, promise, outdated].map(({ textContent }) => textContent),
      });
      save(file, "vouch-batch.zip");
    } catch (error) {
      if (!packing.signal.aborted) refused(problemOf(error));
    }
    state.packing = null;
    packer.textContent = t`Download as ZIP`;
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
    const { point } = await askJson("/v1/galleries/{gallery}/calibration/operating-points", {
      path: { gallery: gallery.name }, query: { max_error: wanted },
    });
    if (wanted !== Number(budget.value)) return; // a newer request is under way
    Object.assign(state, { budget: wanted, threshold: point?.threshold ?? null });
    state.promise = point
      ? t`Guaranteed: at most ${percent(wanted)} wrong from a match probability of ${percent(point.threshold)} on, for photos like those of the calibration.`
      : t`The gallery guarantees no error as small as ${percent(wanted)}, so nothing is accepted automatically.`;
    show();
  }

  function show() {
    state.shown = performance.now();
    const { budget: share, threshold, line } = state;
    const { accepted, wrong } = accept(entries, share, threshold === null ? null : Math.max(threshold, line ?? 0));
    state.accepted = accepted;
    promise.textContent = state.promise + (threshold !== null && line > threshold
      ? ` ${t`Below your own line of ${percent(line)}, nothing is accepted automatically.`}` : "");
    const states = entries.map((entry) => stateOf(entry, accepted));
    const n = (name) => states.filter((one) => one === name).length;
    const unseen = n("accepted") - accepted.size;
    const searched = entries.filter(({ answer, problem }) => answer || problem).length;
    const stale = entries.find(({ answer }) => ["stale", "drifting"].includes(answer?.bundle.calibration.status));
    outdated.replaceChildren(...(stale ? [
      t`Later answers are not accepted automatically: the calibration is out of date. `,
      ...saidParts(stale.answer.bundle.calibration.reason),
    ] : []));
    outdated.hidden = !stale;
    const all = Math.max(state.n, entries.length);
    title.textContent = t`${count(all)} {0|photograph|photographs}`;
    Object.assign(progress, { max: all, value: searched, hidden: state.ended });
    stopper.hidden = state.ended ? searched === entries.length : entries.length < all;
    stopper.textContent = state.ended ? t`Continue` : t`Stop`;
    sentence.textContent = [
      t`${count(accepted.size)} accepted automatically`,
      accepted.size ? t`expected wrong: ${wrong < 0.1 ? t`fewer than 0.1` : fixed(wrong, 1)}` : "",
      unseen ? t`${count(unseen)} accepted without review` : "",
      t`${count(n("look"))} to review`,
      n("decided") ? t`${count(n("decided"))} decided` : "",
      n("failed") ? t`${count(n("failed"))} failed` : "",
      entries.length < all ? t`${count(entries.length)} of ${count(all)} read`
        : searched < all ? t`${count(searched)} of ${count(all)} searched` : "",
    ].filter(Boolean).join(" · ");
    const left = needing().length;
    through.textContent = t`Review ${count(left)}`;
    through.disabled = left === 0;
    acceptor.textContent = t`Accept ${count(left)} without review`;
    acceptor.hidden = left === 0;
    undoer.textContent = t`Undo: ${count(state.unseen.length)} accepted without review`;
    undoer.hidden = state.unseen.length === 0;
    retrier.hidden = !state.ended || n("failed") === 0;
    const wanted = seen();
    shown.textContent = wanted.length < entries.length ? t`${count(wanted.length)} of ${count(entries.length)} shown` : "";
    for (const [entry, { update }] of rows) update(stateOf(entry, accepted), judged(entry).answer);
    if (!body.matches(":focus-within")) { // a row that moves loses the focus
      arrange(body, wanted.map((entry) => rows.get(entry).element));
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
    follow: ({ line, filtered: isFiltered }) => {
      unfiltered.hidden = !isFiltered;
      if (line === state.line) return;
      state.line = line;
      show();
    },
    added: () => {
      for (const entry of entries) {
        if (!rows.has(entry)) rows.set(entry, row(entry, () => goThrough(entry)));
      }
      changed();
    },
    reading: (n) => { Object.assign(state, { n, ended: false }); show(); },
    left: ({ tooMany, others, twice }) => {
      left.textContent = [
        tooMany ? t`${count(tooMany)} {0|photograph was|photographs were} left out: a batch has at most ${count(MOST)}.` : "",
        others ? t`${count(others)} {0|file is no image and was|files are no images and were} left out.` : "",
        twice ? t`${count(twice)} {0|photograph was|photographs were} in the batch already.` : "",
      ].filter(Boolean).join(" ");
      left.hidden = !left.textContent;
    },
    unkept: () => { kept.textContent = t`This browser cannot keep the batch: a reload would lose it.`; },
    writing: (n) => { kept.ariaBusy = String(n > 0); },
    started: () => { state.ended = false; show(); },
    ended: () => { state.ended = true; show(); },
    end: () => { unheard(); clearTimeout(due); state.packing?.abort(); },
  };
}

/** Let `body` have these rows, in this order. Rows that stay where they are, which are most, are not
 * touched: hundreds would be laid out anew. */
export function arrange(body, wanted) {
  const kept = new Set(wanted);
  for (const one of [...body.children]) if (!kept.has(one)) one.remove();
  let at = body.firstElementChild;
  for (const one of wanted) {
    if (at && at !== one && at.nextElementSibling === one) at = one; // what is passed goes further down
    if (at === one) at = one.nextElementSibling;
    else body.insertBefore(one, at);
  }
}

/** Whether a path, a label or an id contains a text. */
const mentions = ({ name, answer, decision }, text) => !text ||
  [name, answer?.results[0]?.label, answer?.results[0]?.id, decision?.item?.label]
    .some((one) => one?.toLowerCase().includes(text));

/** A row of the table, which changes when something has come of its entry. */
function row(entry, open) {
  const answer = el("td", { dir: "auto" });
  const what = el("td", {});
  const element = el("tr", { "data-testid": "batch-row" },
    el("th", { scope: "row" }, el("button.open", { type: "button", onclick: open },
      picture(entry.preview, "", true), el("span.sr", {}, t`Look at ${ending(entry.name)}`)),
    el("span.file", { dir: "auto" }, ending(entry.name))),
    answer, what);
  let before;

  function update(state, shown) {
    const now = `${state} ${shown?.verdict} ${entry.decision?.at} ${entry.decision?.state} ${entry.accepted}`;
    if (now === before) return;
    before = now;
    element.dataset.state = state;
    what.textContent = todo(entry, state);
    if (shown) answer.replaceChildren(...answerCell(shown));
  }
  return { element, update };
}

/** @param {Api.SearchAnswer} answer */
function answerCell(answer) {
  const { verdict, results: [first] } = answer;
  const { word, withholds } = verdictOf(answer);
  const p = withholds ? null : first?.match_probability ?? null;
  return [
    el("span.verdict-word", { "data-verdict": verdict }, glyph(verdict), word),
    first ? el("span.first-result", {}, p === null ? t`nearest: ${brief(first.label ?? first.id)}`
      : `${brief(first.label ?? first.id)}, ${percent(p)}`) : "",
  ];
}
