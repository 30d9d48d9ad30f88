// How far a gallery may be believed: what its calibration measured, and a line drawn elsewhere.

import { dialogHeader, el, openDialog } from "../elements.js";
import { language, t } from "../language.js";
import { said } from "../service_texts.js";
import { QUERIES, absentSentence, brief, count, fixed, isNumber, percent } from "../words.js";
import { reliability, riskAndCoverage } from "./diagrams.js";

/** Show what `report` (of `GET …/calibration`) says of `gallery`. `line` is the probability from
 * which the visitor wants a match, null for the gallery's own; `moved` is told another one. */
export function believe(gallery, report, { line, moved, within }) {
  const dialog = el("dialog.believe", {
    "aria-labelledby": "believe-title", "data-testid": "believe",
  },
  dialogHeader(el("h2", { id: "believe-title" }, t`How far can it be believed?`)),
  outcomeParts(gallery.outcome),
  report.status === "missing"
    ? el("p", {}, t`This gallery has not been calibrated: there is nothing to believe yet.`)
    : [origin(report, gallery.bundle.calibration), lineParts(report, line, moved), reliabilityPart(report), rest(report)]);
  openDialog(dialog, within);
}

/** The same sentences as the build ends with. */
const outcomeParts = (outcome) => el("ul.plain", { "data-testid": "outcome" },
  (outcome?.lines ?? []).map(({ severity, sentence }) =>
    el(severity === "fact" ? "li" : "li.warning", {}, said(sentence))));

function origin({ status, n_queries: n, queries, absent, drift, sources = [], written_at: at }, { reason }) {
  const day = at && new Date(at).toLocaleDateString(language, { dateStyle: "long" });
  return [
    el("p", {}, t`Measured with ${count(n)} ${QUERIES[queries] ?? t`queries`}, each judged by a calibration that had not seen it.`,
      queries === "views_of_items" && ` ${t`These are made up, and easier than photographs that others take.`}`,
      sources.length > 1 && ` ${t`They come from ${sources.map(brief).join(", ")}.`}`,
      day && ` ${t`Calibrated, or brought here, on ${day}.`}`),
    status === "stale"
      ? el("p.warning", {}, t`The calibration is out of date: what stands here is no promise.`, reason && ` ${said(reason)}`)
      : status === "drifting" ? el("p.warning", { "data-testid": "drift" }, said(reason))
        : drift?.reason ? el("p.note", { "data-testid": "drift" }, t`Whether queries since then differ from these is not tested.`)
          : drift?.drifted ? el("p.warning", { "data-testid": "drift" }, t`Queries of all users together differ from these since then.`)
            : el("p.note", { "data-testid": "drift" }, t`No difference between these and later queries was found.`),
    drift?.n_alarmed ? el("p.note", {}, t`Users whose queries differ from these: ${count(drift.n_alarmed)}. Answers to them are not guaranteed.`) : "",
    absent && el("p.note", {}, absentSentence({ share: absent.used, origin: null, basis: absent.basis })),
  ];
}

/** The slider: from the strictest line to one that calls everything a match. */
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
      ? [t`The gallery promises no match at all: too few queries speak for it.`] : costs(report, point)));
    drawing.replaceChildren(riskAndCoverage(points, point));
    slider.setAttribute("aria-valuetext", t`match from ${percent(point.threshold)}`);
    back.hidden = ownLine;
  }

  slider.oninput = () => {
    show(false);
    moved(points[slider.value].threshold);
  };
  back.onclick = () => {
    slider.value = own === undefined ? 0 : nearest(own);
    show(true);
    moved(null);
    slider.focus();
  };
  show(line === null);
  return el("section", {},
    el("h3", {}, t`Where is the line?`),
    el("p.note", {}, t`A first result is called a match from some probability on. Move that line, and see what it costs in this gallery. Answers on this page then follow your line; the service and everybody else keep the gallery’s own.`),
    el("label.slider", { htmlFor: "line" }, el("span", {}, t`strict`), slider, el("span", {}, t`generous`)),
    cost, back, drawing);
}

function costs(report, point) {
  const { threshold, coverage, error, error_bound: bound, false_match_rate: absent } = point;
  const of = (share) => (share < 0.1 ? Math.round(1000 * share) / 10 : Math.round(100 * share));
  const confidence = Math.round(100 * (1 - report.delta));
  return [
    el("b", {}, t`A match from ${percent(threshold)} on. `),
    t`Of 100 queries ${of(Math.min(1, coverage))} get a match. Of 100 such matches ${of(error)} are wrong, at most ${of(bound)} with ${confidence} % confidence. `,
    isNumber(absent)
      ? t`Of 100 queries that have no match here, ${of(absent)} get one all the same.`
      : t`How often a query without a match here gets one is not known: nothing true stood for such queries.`,
  ];
}

function reliabilityPart({ reliability: bins, top1_ece: ece }) {
  if (!bins.some(({ n }) => n > 0)) return "";
  return el("section", {},
    el("h3", {}, t`Do probabilities come true?`),
    el("p", {}, t`On average they are off by ${percent(ece)}. On the dashed line they would all be true.`),
    reliability(bins));
}

const SOURCES = {
  near: () => t`images of labels it does not hold`,
  far: () => t`images of another world`,
  corrupted: () => t`spoilt images`,
};

function rest(report) {
  const sets = report.result_sets.filter(({ promised }) => promised);
  const told = Object.entries(report.outlier_auroc).filter(([, auroc]) => isNumber(auroc));
  const over = report.errors_over_time;
  return el("section", {},
    el("h3", {}, t`What else it promises, and what became of it`),
    el("ul.plain", {},
      sets.map(({ coverage, covered, mean_size: size }) => el("li", {},
        t`Sets that shall hold a match with ${percent(coverage)}: ${percent(covered)} did, with ${fixed(size, 1)} items on average.`)),
      el("li", {}, t`False alarms: ${percent(report.alpha)} of ordinary images may be called strange.`),
      told.map(([kind, auroc]) => el("li", {},
        t`Told from ordinary images, ${SOURCES[kind]?.() ?? kind}: right in ${percent(auroc)} of pairs.`)),
      over?.n_reviewed > 0 && el("li", {},
        t`Reviewed since: ${count(over.n_reviewed)} matches, ${count(over.n_wrong)} of them wrong.`),
      over?.alarm && el("li", {}, t`More matches were wrong than is promised.`),
      report.feedback && el("li", {},
        t`Feedback on ${count(report.feedback.n)} results: foretold ${percent(report.feedback.probability)}, right ${percent(report.feedback.share)}.`)));
}
