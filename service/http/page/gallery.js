// What a gallery is, in a few lines, and samples to try it with.

import { el, picture } from "./elements.js";
import { learn, t } from "./language.js";
import { saidParts } from "./service_texts.js";
import { QUERIES, brief, count, estimateSentence, isNumber, percent } from "./words.js";

/** @type {Record<string, [string, () => string]>} */
const LINKS = { // what a gallery's buttons open, and their names in tests
  report: ["open-report", () => t`Accuracy report`],
  items: ["open-browse", () => t`Browse gallery`],
  review: ["open-review", () => t`Review queue`],
  unknown: ["open-unknown", () => t`Unknown photos`],
  decisions: ["open-decided", () => t`Review history`],
  guarantees: ["open-guarantees", () => t`Set up guarantees`],
  add: ["open-add", () => t`Add photographs`],
  settings: ["open-settings", () => t`Gallery settings`],
  key: ["open-key", () => t`Your key`],
};

/** What is shown in place of an answer of a gallery without items. */
export const emptyPart = (add) => el("div.empty", { "data-testid": "empty" },
  el("h2", {}, t`This gallery is empty`),
  el("p", {}, add ? t`Add photographs, and it finds them from then on.`
    : t`A key that may write is needed to add photographs.`),
  add ? el("button.primary", { type: "button", onclick: add }, t`Add photographs`) : "");

/** A failure of the gallery's outcome; its sentence is among those that are loaded late. */
function failurePart({ sentence }) {
  const part = el("p.warning", { "data-testid": "failure" });
  learn().then(() => part.append(...saidParts(sentence)));
  return part;
}

/** A gallery by its description and the `report` on its calibration. `open` has what its buttons
 * open: the `report`, the `items`, what guarantees need and, for a visitor who may, the `decisions`, the
 * `review` queue and how photographs are added.
 *
 * @param {Page.Gallery} gallery
 * @param {Api.CalibrationReport} report
 * @param {Record<string, false | (() => void)>} open */
export function galleryParts(gallery, report, open) {
  const { title, description, n_items: n, n_labels, labels = [], bundle, outcome } = gallery;
  const { status, n_queries: nQueries } = bundle.calibration;
  const queries = QUERIES[report.queries] ?? t`queries`;
  const estimate = report.absent ? estimateSentence(report.absent) : "";
  const recall = outcome?.recall_at_1;
  const failures = (outcome?.lines ?? []).filter(({ severity }) => severity === "failure");
  const more = n_labels - labels.length;
  const shown = labels.map(brief).join(", ");
  return [
    title && el("h2", { dir: "auto" }, title),
    el("p", { dir: "auto" }, description),
    el("p.facts", {}, t`${count(n)} {0|item|items}, `,
      status === "missing" ? el("strong", {}, t`not calibrated`)
        : t`calibrated on ${count(nQueries)} ${queries}`,
      status === "stale" && el("strong", {}, t`, which is out of date`),
      isNumber(recall) ? t`. First result right: ${percent(recall)}.` : "."),
    ...failures.map(failurePart),
    estimate && el("p.facts", { "data-testid": "estimate" }, estimate),
    labels.length ? el("p.facts", {}, more > 0
      ? t`Labels: ${shown} and ${count(more)} more.` : t`Labels: ${shown}.`) : "",
    el("p.links", {}, Object.entries(LINKS).filter(([name]) => open[name]).map(([name, [id, words]]) =>
      el("button.link", { type: "button", onclick: open[name], "data-testid": id }, words()))),
  ].filter(Boolean);
}

/** Sample questions; `ask` is given the one that is chosen.
 *
 * @param {Api.Sample[]} samples
 * @param {(sample: Api.Sample) => void} ask */
export const sampleList = (samples, ask) => samples.map((sample) =>
  el("li", {}, el("button", {
    type: "button", "data-testid": "sample", "data-belongs": sample.belongs,
    onclick: () => ask(sample),
  }, picture(sample.thumbnail_url ?? sample.image_url, ""), el("span", {}, sample.caption,
    !sample.belongs && el("span.absent", {}, t`should be rejected`)))));
