// What a gallery is, in a few lines, and samples to try it with.

import { el, picture } from "./elements.js";
import { t } from "./language.js";
import { said } from "./service_texts.js";
import { QUERIES, brief, count, estimateSentence, isNumber, percent } from "./words.js";

/** A gallery by its description and the `report` on its calibration. `open` has what its buttons
 * open: the `report`, the `items` and, where the service keeps them, the `decisions`. */
export function galleryParts(gallery, report, open) {
  const { description, n_items: n, n_labels, labels = [], bundle, outcome } = gallery;
  const { status, n_queries: nQueries } = bundle.calibration;
  const queries = QUERIES[report.queries] ?? t`queries`;
  const estimate = report.absent ? estimateSentence(report.absent) : "";
  const recall = outcome?.recall_at_1;
  const failures = (outcome?.lines ?? []).filter(({ severity }) => severity === "failure");
  const more = n_labels - labels.length;
  const shown = labels.map(brief).join(", ");
  return [
    el("p", { dir: "auto" }, description),
    el("p.facts", {}, t`${count(n)} items, `,
      status === "missing" ? el("strong", {}, t`not calibrated`)
        : t`calibrated on ${count(nQueries)} ${queries}`,
      status === "stale" && el("strong", {}, t`, which is out of date`),
      isNumber(recall) ? t`. First result right: ${percent(recall)}.` : "."),
    ...failures.map(({ sentence }) => el("p.warning", { "data-testid": "failure" }, said(sentence))),
    estimate && el("p.facts", { "data-testid": "estimate" }, estimate),
    labels.length ? el("p.facts", {}, more > 0
      ? t`Labels: ${shown} and ${count(more)} more.` : t`Labels: ${shown}.`) : "",
    el("button.link", { type: "button", onclick: open.report, "data-testid": "open-report" },
      t`How far can it be believed?`), " ",
    el("button.link", { type: "button", onclick: open.items, "data-testid": "open-browse" },
      t`Look through it`), " ",
    open.decisions && el("button.link", { type: "button", onclick: open.decisions, "data-testid": "open-decided" },
      t`Decisions so far`),
  ].filter(Boolean);
}

/** Sample questions; `ask` is given the one that is chosen. */
export const sampleList = (samples, ask) => samples.map((sample) =>
  el("li", {}, el("button", {
    type: "button", "data-testid": "sample", "data-belongs": sample.belongs,
    onclick: () => ask(sample),
  }, picture(sample.image_url, ""), el("span", {}, sample.caption,
    !sample.belongs && el("span.stranger", {}, t`does not belong`)))));
