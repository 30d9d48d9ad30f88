// The review queue: cases that the service leases, one after another, with one key a decision.

import { ask, askJson } from "../api.js";
import { dialogHeader, el, openDialog } from "../elements.js";
import { t } from "../language.js";
import { count } from "../words.js";
import { onDecision, reviewer } from "./decisions.js";
import { look } from "./looking.js";

const LEASED = 10; // cases at a time
const AHEAD = 4; // cases left at which more are leased
const WAIT = 30_000; // ms at most for decisions that are on their way when the room is left

/** Open the review queue of `gallery`, in a dialog `within` the page.
 * A visitor who `mayRemove` cases can delete one whose photograph must not be kept. `named` opens the
 * queue again for a visitor who has given a name.
 *
 * @param {Page.Gallery} gallery */
export async function openReview(gallery, { within, mayRemove, named }) {
  if (!reviewer.get()) return askName(within, named);
  const path = { gallery: gallery.name };
  const by = reviewer.get();
  const [summary, before] = await Promise.all(
    [askJson("/v1/galleries/{gallery}/review/summary", { path }), errorsOf(gallery)]);
  let open = summary.counts.filter(({ state }) => state === "open").reduce((sum, { n }) => sum + n, 0);
  const waiting = []; // entries that are leased and not shown yet
  const undecided = new Map(); // by query: all that are leased
  let fetching = null;
  let decided = 0;

  async function lease() {
    const { leases } = await askJson("/v1/galleries/{gallery}/review/leases", {
      method: "POST", path, json: { reviewer: by, limit: LEASED },
    });
    const fresh = leases.filter(({ case: { query_id: id } }) => !undecided.has(id));
    const entries = await Promise.all(fresh.map(async ({ case: one }) => {
      const blob = one.image_url && await ask(one.image_url).then((found) => found.blob(), () => null);
      return entryOf(one, gallery, blob || null);
    }));
    for (const entry of entries) undecided.set(entry.answer.query.id, entry);
    waiting.push(...entries);
  }

  /** Lease more; one request at a time. */
  const more = () => (fetching ??= lease().finally(() => { fetching = null; }));

  async function next() {
    if (!waiting.length) await more().catch(() => {});
    else if (waiting.length <= AHEAD) more().catch(() => {}); // the request is repeated when there is none
    return waiting.shift() ?? null;
  }

  const unheard = onDecision(({ entry, state }) => {
    const id = entry.answer.query.id;
    if (undecided.get(id) !== entry) return;
    if (entry.decision === null) decided -= 1; // it was taken back
    else if (state === "waiting" && !entry.counted) decided += 1;
    entry.counted = entry.decision !== null;
  });

  /** Delete what the service keeps of a case. */
  async function remove(entry) {
    const { id } = entry.answer.query;
    await askJson("/v1/galleries/{gallery}/review/{query_id}", { method: "DELETE", path: { ...path, query_id: id } });
    undecided.delete(id);
    open -= 1;
  }

  await more();
  const first = waiting.shift();
  if (!first) {
    unheard();
    return report({ open, decided, before, after: before, summary, within });
  }
  look(first, gallery, {
    within, next, remove: mayRemove ? remove : null, putBack: (entry) => { if (!entry.decision) waiting.unshift(entry); },
    progress: () => t`${count(decided)} decided · ${count(Math.max(0, open - decided))} open`,
    closed: async () => {
      unheard();
      await Promise.race([sent(undecided.values()), new Promise((done) => setTimeout(done, WAIT))]);
      for (const [id, { decision }] of undecided) {
        if (decision) continue;
        askJson("/v1/galleries/{gallery}/review/{query_id}/lease", {
          method: "DELETE", path: { ...path, query_id: id }, query: { reviewer: by },
        }).catch(() => {});
      }
      const after = await errorsOf(gallery);
      if (decided) report({ open: Math.max(0, open - decided), decided, before, after, summary, within });
    },
  });
}

/** Ends once all decisions on these entries were answered. */
const sent = (entries) => Promise.all([...entries].map(({ line }) => line));

/** @typedef {{ errors?: Api.ErrorsOverTime, feedback?: Api.FeedbackSummary }} Measured */

/** What reviews have measured of the gallery's matches.
 *
 * @param {Page.Gallery} gallery
 * @returns {Promise<Measured>} */
const errorsOf = (gallery) => askJson("/v1/galleries/{gallery}/calibration", { path: { gallery: gallery.name } })
  .then(({ errors_over_time: errors, feedback }) => ({ errors, feedback }), () => ({}));

/** A case as what is looked at: a photograph with its answer.
 *
 * @param {Api.ReviewCase} found
 * @param {Page.Gallery} gallery
 * @param {Blob | null} blob
 * @returns {Page.Entry} */
function entryOf({ query_id: id, verdict, found, number }, gallery, blob) {
  const results = found.map((item, i) => ({ ...item, rank: i + 1, metadata: {} }));
  return {
    name: t`Case ${number}`, blob, decision: null,
    answer: { gallery: gallery.name, verdict, results, query: { id } },
  };
}

/** Ask who decides, once. */
function askName(within, go) {
  const name = el("input", { type: "text", id: "reviewer-name", required: true, maxLength: 100, autocomplete: "name" });
  const dialog = el("dialog.asking", { "aria-labelledby": "asking-title", "data-testid": "ask-name" },
    dialogHeader(el("h2", { id: "asking-title" }, t`Who decides?`)),
    el("form.small", { onsubmit: (event) => {
      event.preventDefault();
      if (!name.value.trim()) return;
      reviewer.set(name.value);
      dialog.close();
      go();
    } }, el("label", { htmlFor: "reviewer-name" }, t`Your name`), name, el("button.primary", { type: "submit" }, t`Start`)),
    el("p.note", {}, t`Each decision is stored with this name. This browser remembers it.`));
  openDialog(dialog, within);
  name.focus();
}

/** What was done, what is left, and what the reviews have measured.
 *
 * @param {{ summary: Api.ReviewSummary, before: Measured, after: Measured } & Record<string, any>} options */
function report({ open, decided, before, after, summary, within }) {
  /** @param {string} words
   * @param {Measured} found */
  const measured = (words, { errors, feedback }) => [
    errors ? el("li", {}, words, t`${count(errors.n_reviewed)} {0|match|matches} drawn at random {0|is|are} reviewed, ${count(errors.n_wrong)} of them wrong.`) : "",
    feedback ? el("li", {}, words, t`${count(feedback.n)} {0|result is|results are} judged.`) : "",
  ];
  const changed = JSON.stringify(before) !== JSON.stringify(after);
  openDialog(el("dialog.reviewed", { "aria-labelledby": "reviewed-title", "data-testid": "reviewed" },
    dialogHeader(el("h2", { id: "reviewed-title" }, t`Review queue`)),
    el("ul.plain", {},
      decided ? el("li", {}, t`Cases that you decided: ${count(decided)}.`) : "",
      el("li", {}, open ? t`${count(open)} {0|case is|cases are} open, but none for you now: others have them, or you decided them.`
        : t`No case is open.`),
      summary.reviewers > 1 ? el("li", {}, t`A case is decided once ${count(summary.reviewers)} reviewers agree.`) : "",
      changed ? measured(t`Before: `, before) : "", measured(changed ? t`Now: ` : "", after),
      decided ? el("li", {}, t`The next calibration uses the decisions.`) : "")), within);
}
