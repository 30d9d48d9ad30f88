// What the guarantees of a gallery need, what there is, and what to do next.

import { askJson } from "../api.js";
import { dialogHeader, el, openDialog } from "../elements.js";
import { t } from "../language.js";
import { outcomeLines, saidParts } from "../service_texts.js";
import { count, percent } from "../words.js";

const SIZES = {
  one: () => t`labels with one item`,
  few: () => t`labels with 2 to 5 items`,
  many: () => t`labels with more than 5 items`,
};

/** Open what the guarantees of `gallery` need, by the `report` on its calibration. `go` opens another
 * room of the page; `may` is what the visitor may do. */
export async function openGuarantees(gallery, report, { within, go, may }) {
  const summary = gallery.keeps && may.review
    ? await askJson(`/v1/galleries/${encodeURIComponent(gallery.name)}/review/summary`).catch(() => null) : null;
  const n = (state) => summary.counts.filter((one) => one.state === state).reduce((sum, one) => sum + one.n, 0);
  const { status } = report;
  const lines = outcomeLines(gallery.outcome);
  const classes = (report.matches ?? []).filter(({ n_labels: labels }) => labels > 0).map(({ size_class: size, threshold, reason }) =>
    el("li", {}, el("b", {}, SIZES[size]?.() ?? size), ": ", threshold === null
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
      el("li", {}, t`${count(gallery.n_items)} items with ${count(gallery.n_labels)} labels.`),
      el("li", {}, status === "missing" ? t`No calibration: no answer is guaranteed, and none is a match.`
        : t`A calibration with ${count(report.n_queries)} queries.`), lines,
      summary && el("li", { "data-testid": "queue-state" },
        t`Review queue: ${count(n("open"))} open, ${count(n("settled"))} decided.`)),
    el("h3", {}, t`What is needed`),
    status === "missing"
      ? el("ul.plain", {},
        el("li", {}, t`Labels: photos of the same thing need the same label, with two photos or more.`),
        el("li", {}, t`Calibration queries: photos like those that users will send, each with its label. 100 or more allow useful bounds; some should show things that are not in the gallery.`),
        el("li", {}, t`The operator calibrates with them: `, el("code", {}, "vouch-build calibrate DIR --queries FILE --gallery FILE")))
      : el("ul.plain", {}, classes,
        el("li", {}, t`More decisions make the next calibration better: `, el("code", {}, "vouch-build calibrate DIR --decisions FEEDBACK"))),
    !summary && gallery.keeps && may.review && status !== "missing"
      ? el("p.note", {}, t`The operator sets VOUCH_REVIEW_REASONS to keep queries for review.`) : "",
    el("p.actions", {}, summary ? button(t`Review queue`, "review") : "", button(t`Add photographs`, "add"),
      button(t`Accuracy report`, "report")));
  openDialog(dialog, within);
}
