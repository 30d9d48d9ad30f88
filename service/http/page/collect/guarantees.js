// What the guarantees of a gallery need, what there is, and its calibration.

import { askJson } from "../api.js";
import { dialogHeader, el, openDialog } from "../elements.js";
import { learn, t } from "../language.js";
import { reasonOf } from "../problem.js";
import { outcomeLines, said, saidParts } from "../service_texts.js";
import { count, percent } from "../words.js";

await learn(); // the outcome's sentences

const MIN_QUERIES = 50; // which the builder asks for
const ERRORS = [0.01, 0.02, 0.05, 0.1, 0.2]; // bounds to choose from
const POLL_EVERY = 1500; // ms

/** @type {Record<Api.MatchPromise["size_class"], () => string>} */
const SIZES = {
  one: () => t`labels with one item`,
  few: () => t`labels with 2 to 5 items`,
  many: () => t`labels with more than 5 items`,
};

/** The form that calibrates the gallery. `changed` is called once that is done.
 *
 * @param {{ gallery: string }} path
 * @param {Api.CalibrationReport} report
 * @param {Api.CalibrationRun} last */
function calibrating(path, report, last, changed) {
  const bound = report.status === "missing" ? 0.05 : report.max_error;
  const errors = [...new Set([...ERRORS, bound])].sort((a, b) => a - b);
  const choice = el("select", { id: "calibrate-error" }, errors.map((one) =>
    el("option", { value: one, selected: one === bound }, percent(one))));
  const status = el("p.status", { role: "status", "data-testid": "calibrating-status" });
  const progress = el("progress", { hidden: true, "aria-label": t`Calibrating` });
  const start = el("button.primary", { type: "submit", "data-testid": "calibrate" },
    report.status === "missing" ? t`Calibrate now` : t`Calibrate again`);

  const show = (words, running = false) => {
    status.textContent = words;
    progress.hidden = !running;
    start.disabled = choice.disabled = running;
  };

  /** Wait for the end of a run. */
  async function follow(run) {
    show(t`Calibrating. It takes about half a minute; it continues if you leave this page.`, true);
    while (run.state === "running") {
      await new Promise((done) => setTimeout(done, POLL_EVERY));
      if (!status.isConnected) return; // the dialog is closed; the next one continues
      run = await askJson("/v1/galleries/{gallery}/calibration/run", { path }).catch((error) => {
        if ([0, 429, 503, 504].includes(error.problem?.status)) return run; // the new calibration is being opened
        throw error;
      });
    }
    if (run.state === "failed") show(t`Not calibrated. ${said(run.reason)}`);
    else changed();
  }

  const attempt = (work) => work().catch((error) => show(reasonOf(error)));
  if (last.state === "running") attempt(() => follow(last));
  return el("form.actions", { onsubmit: (event) => {
    event.preventDefault();
    attempt(async () => follow(await askJson("/v1/galleries/{gallery}/calibration", {
      method: "POST", path, json: { max_error: Number(choice.value) },
    })));
  } }, el("label", { htmlFor: "calibrate-error" }, t`Largest share of wrong matches`), choice, start, progress, status);
}

/** Open what the guarantees of `gallery` need, by the `report` on its calibration. `go` opens another
 * room of the page; `may` is what the visitor may do; `changed` is called after a calibration.
 *
 * @param {Page.Gallery} gallery
 * @param {Api.CalibrationReport} report */
export async function openGuarantees(gallery, report, { within, go, may, changed }) {
  const path = { gallery: gallery.name };
  /** @type {Api.ReviewSummary} */
  const summary = gallery.keeps && may.review
    ? await askJson("/v1/galleries/{gallery}/review/summary", { path }).catch(() => null) : null;
  const n = (state) => summary.counts.filter((one) => one.state === state).reduce((sum, one) => sum + one.n, 0);
  const { status } = report;
  const last = await askJson("/v1/galleries/{gallery}/calibration/run", { path });
  const paired = last.n_item_queries;
  // Without a calibration, the outcome only names a command; the form below does the same.
  const lines = status === "missing" ? [] : outcomeLines(gallery.outcome?.lines ?? []);
  const classes = (report.matches ?? []).filter(({ n_labels: labels }) => labels > 0).map(({ size_class: size, threshold, reason }) =>
    el("li", {}, el("b", {}, t`${SIZES[size]?.() ?? size}: `), threshold === null
      ? reason ? saidParts(reason) : t`nothing is guaranteed`
      : t`a match is guaranteed from a probability of ${percent(threshold)} on`));
  const button = (words, room) => el("button", { type: "button", onclick: ({ target }) => {
    target.closest("dialog").close();
    go([room]);
  } }, words);
  const dialog = el("dialog.guarantees", { "aria-labelledby": "guarantees-title", "data-testid": "guarantees" },
    dialogHeader(el("h2", { id: "guarantees-title" }, t`Set up guarantees`)),
    el("h3", {}, t`What there is`),
    el("ul.plain", {},
      el("li", {}, t`${count(gallery.n_items)} {0|item|items} with ${count(gallery.n_labels)} {1|label|labels}.`),
      el("li", {}, status === "missing" ? t`Not calibrated yet: until then, no answer is called a match.`
        : t`A calibration with ${count(report.n_queries)} queries.`), lines,
      summary && el("li", { "data-testid": "queue-state" },
        t`Review queue: ${count(n("open"))} open, ${count(n("settled"))} decided.`)),
    el("h3", {}, t`What is needed`),
    status === "missing"
      ? el("ul.plain", {},
        el("li", {}, t`Labels: photos of the same thing need the same label, with two photos or more.`),
        paired !== null && el(paired < MIN_QUERIES ? "li.warning" : "li", { "data-testid": "paired" },
          t`${count(paired)} photos share their label with another photo; at least ${count(MIN_QUERIES)} are needed. Each is then searched for among the others.`,
          paired >= MIN_QUERIES ? t` That is enough.` : ""),
        el("li", {}, t`Photos like those that users will send are better evidence. On the command line: `,
          el("code", {}, "vouch-build calibrate DIR --queries FILE --gallery FILE")))
      : el("ul.plain", {}, classes,
        el("li", {}, t`More decisions make the next calibration better: `, el("code", {}, "vouch-build calibrate DIR --decisions FEEDBACK"))),
    may.admin ? calibrating(path, report, last, changed)
      : el("p.note", {}, t`Only an administrator may calibrate.`),
    !summary && gallery.keeps && may.review && status !== "missing"
      ? el("p.note", {}, t`The operator sets VOUCH_REVIEW_REASONS to keep queries for review.`) : "",
    el("p.actions", {}, summary ? button(t`Review queue`, "review") : "", button(t`Add photographs`, "add"),
      button(t`Accuracy report`, "report")));
  openDialog(dialog, within);
}
