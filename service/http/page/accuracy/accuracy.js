// The accuracy of a gallery: what its calibration measured, and a line drawn elsewhere.

import { askJson } from "../api.js";
import { copy, dialogHeader, el, openDialog } from "../elements.js";
import { language, learn, t } from "../language.js";
import { reasonOf } from "../problem.js";
import { outcomeLines, said, saidParts } from "../service_texts.js";
import { QUERIES, absentSentence, brief, count, estimateSentence, fixed, isNumber, percent } from "../words.js";
import { reliability, riskAndCoverage } from "./diagrams.js";
import { historyPart } from "./history.js";

await learn(); // the outcome's sentences

/** Show what `report` (of `GET …/calibration`) has about `gallery`. `line` is the probability from
 * which the visitor wants a match, null for the gallery's own; `moved` receives another one. `changed` is
 * called when an operator, who `mayDecide`, has changed the report, `switched` when another bundle is served.
 *
 * @param {Page.Gallery} gallery
 * @param {Api.CalibrationReport} report */
export function showAccuracy(gallery, report, {
  line, moved, within, mayDecide = false, changed = () => {}, switched = () => {},
}) {
  const { outcome } = gallery;
  const lines = outcome?.lines ?? [];
  const isFact = ({ severity }) => severity === "fact";

  const dialog = el("dialog.accuracy", {
    "aria-labelledby": "accuracy-title", "data-testid": "accuracy",
  },
  dialogHeader(el("h2", { id: "accuracy-title" }, t`Accuracy report`)),
  headline(outcome, report),
  el("ul.plain", { "data-testid": "outcome" }, outcomeLines(lines.filter((one) => !isFact(one)))),
  report.status === "missing"
    ? el("p", {}, t`This gallery has no calibration, so there is nothing to report yet.`)
    : [origin(report, gallery.bundle.calibration), mayDecide ? operating(gallery, report, changed) : "",
      lineParts(report, line, moved), reliabilityPart(report)],
  historyPart(gallery, mayDecide, switched),
  report.status === "missing" ? "" : rest(report, lines.filter(isFact)));
  openDialog(dialog, within);
}

/** What the calibration has found, as a few large figures.
 *
 * @param {Api.GalleryOutcome} found
 * @param {Api.CalibrationReport} report */
function headline(found, { delta }) {
  const figure = (value, words) => isNumber(value) && el("li", {}, el("b", {}, percent(value)), " ", words);
  const limit = isNumber(found?.max_error) && isNumber(delta)
    ? t` The limit is ${percent(found.max_error)}, with ${percent(1 - delta)} confidence.` : "";
  const figures = [
    figure(found?.recall_at_1, t`of photos with a match in the gallery have it as first result.`),
    figure(found?.match_share, t`of photos with a match in the gallery get the verdict “match”.`),
    figure(found?.match_error, t`of matches are wrong.` + limit),
    figure(found?.false_match_rate, t`of photos without a match in the gallery get the verdict “match”.`),
  ].filter(Boolean);
  return figures.length ? [
    el("ul.headline", { "data-testid": "headline" }, figures),
    found.basis === "evaluation" && el("p.note", {}, t`These figures come from photos that the calibration did not use, all below from its own queries.`),
  ].filter(Boolean) : "";
}

/** @param {Api.CalibrationReport} report
 * @param {Api.CalibrationState} state */
function origin({ status, n_queries: n, queries, absent, drift, sources = [], written_at: at }, { reason }) {
  const day = at && new Date(at).toLocaleDateString(language, { dateStyle: "long" });
  return [
    el("p", {}, t`Measured with ${count(n)} ${QUERIES[queries] ?? t`queries`}. No query was judged by a calibration that has seen it.`,
      queries === "views_of_items" && ` ${t`Augmented views are easier than real photos.`}`,
      sources.length > 1 && ` ${t`They come from ${sources.map(brief).join(", ")}.`}`,
      day && ` ${t`Calibrated (or imported) on ${day}.`}`),
    status === "stale"
      ? el("p.warning", {}, t`The calibration is out of date: the numbers below are not guaranteed.`, reason && ` ${said(reason)}`)
      : status === "drifting" ? el("p.warning", { "data-testid": "drift" }, saidParts(reason))
        : drift?.reason ? el("p.note", { "data-testid": "drift" }, t`Drift is not tested.`)
          : drift?.drifted ? el("p.warning", { "data-testid": "drift" }, t`Drift: later queries of all users together differ from the calibration queries.`,
            ` ${t`Look at recent queries in the review queue. If this gallery is for such photos, calibrate it again with some of them. If not, the alarm can be ended.`}`)
            : el("p.note", { "data-testid": "drift" }, t`No drift since then.`),
    drift?.n_alarmed ? el("p.note", {}, t`Users whose queries drifted: ${count(drift.n_alarmed)}. Their answers are not guaranteed.`) : "",
    absent && el("p.note", {}, absentSentence({
      share: absent.used, origin: isNumber(absent.adopted) ? "adopted" : null, basis: absent.basis,
    }), " ", estimateSentence(absent)),
  ];
}

/** What an operator may do: look at the queries and end an alarm of drift; have probabilities assume the
 * share of absent queries that is seen, or the configured one again.
 *
 * @param {Page.Gallery} gallery
 * @param {Api.CalibrationReport} report */
function operating(gallery, { drift, absent }, changed) {
  const path = { gallery: gallery.name };
  const status = el("span.note", { role: "status" });
  const button = (name, words, act, done) => el("button", { type: "button", "data-testid": name, onclick: async () => {
    status.textContent = await act().then(done, reasonOf);
  } }, words);
  const share = absent?.estimated;
  const differs = isNumber(share) && share > 0 && share < 1 && !absent.is_hint && Math.abs(share - absent.used) >= 0.005;
  const buttons = [
    (drift?.drifted || drift?.n_alarmed) && button("acknowledge", t`I have checked the recent queries`,
      () => askJson("/v1/galleries/{gallery}/calibration/acknowledge", { method: "POST", path }), () => t`Acknowledged: the drift test begins anew.`),
    differs && button("adopt-share", t`Assume ${percent(share)} from now on`,
      () => askJson("/v1/galleries/{gallery}/calibration/absent-share", { method: "POST", path, json: { share } }), changed),
    isNumber(absent?.adopted) && button("reset-share", t`Back to the configured share`,
      () => askJson("/v1/galleries/{gallery}/calibration/absent-share", { method: "DELETE", path }), changed),
  ].filter(Boolean);
  return buttons.length ? el("p.actions", {}, buttons, status) : "";
}

/** The slider: from the strictest line to one that calls everything a match.
 *
 * @param {Api.CalibrationReport} report */
function lineParts(report, line, moved) {
  const points = report.risk_coverage;
  if (!points.length) return "";
  const own = report.point?.threshold ?? report.matches.find((one) => one.threshold !== null)?.threshold;
  const nearest = (threshold) => {
    const place = points.findIndex((point) => point.threshold <= threshold);
    return place < 0 ? points.length - 1 : place;
  };
  const wanted = line ?? own;
  const slider = el("input", {
    type: "range", id: "line", min: 0, max: points.length - 1, step: 1,
    value: wanted === undefined ? 0 : nearest(wanted), "data-testid": "line",
  });
  const cost = el("p.cost", { "data-testid": "cost", "aria-live": "polite" });
  const drawing = el("div", {});
  const back = el("button", { type: "button", "data-testid": "own-line" }, t`Back to the gallery’s own line`);

  function show(ownLine) {
    const point = points[slider.value];
    cost.replaceChildren(...(wanted === undefined && ownLine
      ? [t`No error bound can be guaranteed: there are too few calibration queries.`] : costs(report, point)));
    drawing.replaceChildren(riskAndCoverage(points, point, report.max_error));
    slider.setAttribute("aria-valuetext", t`match from ${percent(point.threshold)}`);
    back.hidden = ownLine;
  }

  slider.oninput = () => {
    show(false);
    moved(points[slider.value].threshold);
  };
  back.onclick = () => {
    slider.value = String(own === undefined ? 0 : nearest(own));
    show(true);
    moved(null);
    slider.focus();
  };
  show(line === null);
  return el("section", {},
    el("h3", {}, t`Where is the line?`),
    el("p.note", {}, t`A first result is called a match from some probability on. Move that line, and see what it costs in this gallery. Answers on this page then follow your line; the service and all others keep the gallery’s own.`),
    el("label.slider", { htmlFor: "line" }, el("span", {}, t`strict`), slider, el("span", {}, t`generous`)),
    cost, back, el("div.drawing", {}, drawing),
    el("p.note", {}, t`Curve: observed. Shaded: up to the upper bound.`,
      isNumber(report.max_error) && ` ${t`Dashed: the gallery’s error limit of ${percent(report.max_error)}.`}`),
    figures([t`match from`, t`queries that get a match`, t`of these wrong`, t`at most`],
      points.map(({ threshold, coverage, error, error_bound: bound }) => [threshold, coverage, error, bound])));
}

const numbers = (head, rows) => el("table", {},
  el("thead", {}, el("tr", {}, head.map((words) => el("th", { scope: "col" }, words)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, row.map((one) =>
    el("td", {}, !isNumber(one) ? one ?? "–" : percent(one)))))));

/** The numbers of a drawing, as a table to be copied: shares, but for what is text. */
function figures(head, rows) {
  const table = numbers(head, rows);
  const cells = ({ cells: all }) => [...all].map((cell) => cell.textContent).join("\t");
  return el("details.figures", {},
    el("summary", {}, t`As a table`),
    el("button", { type: "button", "data-testid": "copy-table", onclick: ({ currentTarget: button }) =>
      copy([...table.rows].map(cells).join("\n"), button) }, t`Copy`), table);
}

/** @param {Api.CalibrationReport} report
 * @param {Api.OperatingPoint} point */
function costs(report, point) {
  const { threshold, coverage, error, error_bound: bound, false_match_rate: absent } = point;
  const of = (share) => (share < 0.1 ? Math.round(1000 * share) / 10 : Math.round(100 * share)).toLocaleString(language);
  const confidence = Math.round(100 * (1 - report.delta));
  return [
    el("b", {}, t`A match from ${percent(threshold)} on. `),
    t`Of 100 queries ${of(Math.min(1, coverage))} get a match. Of 100 such matches ${of(error)} are wrong, at most ${of(bound)} with ${confidence} % confidence. `,
    isNumber(absent)
      ? t`Of 100 queries that have no match here, ${of(absent)} still get one.`
      : t`False-match rate unknown: the calibration had no photos of absent things.`,
  ];
}

/** @param {Api.CalibrationReport} report */
function reliabilityPart({ reliability: bins, top1_ece: ece }) {
  if (!bins.some(({ n }) => n > 0)) return "";
  return el("section", {},
    el("h3", {}, t`Are the probabilities right?`),
    el("p", {}, t`On average, probabilities differ by ${percent(ece)} from what happened. On the dashed line they are exact. A larger dot stands for more queries.`),
    reliability(bins), figures([t`match probability`, t`share that was right`, t`queries`],
      bins.filter(({ n }) => n > 0).map(({ probability, share, n }) => [probability, share, count(n)])));
}

const SOURCES = {
  near: () => t`images of labels it does not hold`,
  far: () => t`images of another kind`,
  corrupted: () => t`corrupted images`,
};

/** @param {Api.CalibrationReport} report */
function rest(report, facts) {
  const sets = report.result_sets.filter(({ promised }) => promised);
  const told = Object.entries(report.outlier_auroc).filter(([, auroc]) => isNumber(auroc));
  const over = report.errors_over_time;
  return el("section.rest", {},
    el("h3", {}, t`Other guarantees and later reviews`),
    sets.length > 0 && el("div", {},
      el("p", {}, t`A result set is the shortest list that contains the right item with a chosen probability:`),
      numbers([t`chosen`, t`measured`, t`items on average`],
        sets.map(({ coverage, covered, mean_size: size }) => [coverage, covered, fixed(size, 1)]))),
    el("div", {}, el("ul.plain", {},
      el("li", {}, t`False alarms: up to ${percent(report.alpha)} of typical photos are called unusual.`),
      told.map(([kind, auroc]) => el("li", {},
        t`Unusual photos (${SOURCES[kind]?.() ?? kind}): in ${percent(auroc)} of pairs, they look more unusual than a typical photo.`)),
      over?.n_reviewed > 0 && el("li", {},
        t`Reviewed since: ${count(over.n_reviewed)} {0|match|matches}, ${count(over.n_wrong)} of them wrong.`),
      over?.alarm && el("li", {}, t`More matches were wrong than guaranteed.`),
      report.feedback && el("li", {},
        t`Feedback on ${count(report.feedback.n)} {0|result|results}: expected ${percent(report.feedback.probability)} right, found ${percent(report.feedback.share)}.`)),
    facts.length > 0 && el("details", {}, el("summary", {}, t`The summary of the calibration in full`),
      el("ul.plain", { "data-testid": "facts" }, outcomeLines(facts)))));
}
