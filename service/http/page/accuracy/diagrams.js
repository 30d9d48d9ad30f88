// Drawings of a calibration: how true probabilities came, and what each line would cost.

import { svg } from "../elements.js";
import { language, t } from "../language.js";
import { NBSP } from "../words.js";

const SIZE = 240; // of a drawing's field, in units of the drawing
const EDGE = { left: 62, bottom: 44, top: 12, right: 24 };
const WIDTH = SIZE + EDGE.left + EDGE.right;
const HEIGHT = SIZE + EDGE.top + EDGE.bottom;

const x = (share) => EDGE.left + SIZE * share;
const y = (share) => EDGE.top + SIZE * (1 - share);

/** A tick, without rounding: "7.5 %". */
const tick = (share) => (100 * share).toLocaleString(language, { maximumFractionDigits: 3 }) + `${NBSP}%`;

/** The next larger round share: the end of an axis. */
const rounded = (share) => {
  const unit = 10 ** Math.floor(Math.log10(share));
  return Math.min(1, unit * ([1, 2, 4, 5, 10].find((one) => one * unit >= share - 1e-9)));
};

function frame(words, across, up, most, ...parts) {
  const text = (at, content, more = {}) => {
    const node = svg("text", { ...at, ...more });
    node.textContent = content;
    return node;
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
    text({ x: x(share), y: HEIGHT - 24 }, tick(share), { "text-anchor": "middle" }),
    text({ x: EDGE.left - 10, y: y(share) + 4 }, tick(share * most), { "text-anchor": "end" }),
    svg("path", { class: "grid", d: `M${x(0)} ${y(share)}H${x(1)}` }),
  ]);
  return svg("svg", {
    class: "diagram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words,
  },
  svg("path", { class: "axes", d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}` }), ...ticks,
  text({ x: x(0.5), y: HEIGHT - 6 }, across, { "text-anchor": "middle" }),
  text({ transform: `translate(10 ${y(0.5)}) rotate(-90)` }, up, { "text-anchor": "middle" }),
  ...parts);
}

/** Predicted probability across, how often it was right up; the larger a dot, the more queries.
 *
 * @param {Api.ReliabilityBin[]} bins */
export function reliability(bins) {
  const seen = bins.filter(({ n }) => n > 0);
  const most = Math.max(...seen.map(({ weight }) => weight));
  return frame(
    t`Reliability: the match probabilities of first results, and how often they were right`,
    t`match probability`, t`share that was right`, 1,
    svg("path", { class: "ideal", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
    ...seen.map((bin) => svg("circle", {
      cx: x(bin.probability), cy: y(bin.share), r: 2 + 6 * Math.sqrt(bin.weight / most),
    })));
}

/** The share of queries that get a match across, the share of wrong ones among these up, with the bound of
 * that share as a band. `at` is the point of the line, `limit` the error that the gallery accepts.
 *
 * @param {Api.OperatingPoint[]} points
 * @param {Api.OperatingPoint} at */
export function riskAndCoverage(points, at, limit = null) {
  const seen = points.filter(({ coverage }) => coverage >= 0.02);
  const most = rounded(Math.max(0.02, limit ?? 0, ...seen.map(({ error }) => error)));
  const placed = (name) => (one) => `${x(Math.min(1, one.coverage))} ${y(Math.min(1, one[name] / most))}`;
  const curve = seen.map(placed("error"));
  const band = [...curve, ...seen.map(placed("error_bound")).reverse()];
  const mark = at && svg("circle", {
    class: "at", r: 7, cx: x(Math.min(1, at.coverage)), cy: y(Math.min(1, at.error / most)),
  });
  return frame(
    t`Risk and coverage: the share of wrong matches, by the share of queries that get a match`,
    t`queries that get a match`, t`of these wrong`, most,
    svg("path", { class: "band", d: `M${band.join("L")}Z` }),
    ...(limit === null ? [] : [svg("path", { class: "ideal", d: `M${x(0)} ${y(limit / most)}H${x(1)}` })]),
    svg("path", { class: "curve", d: `M${curve.join("L")}` }), ...(mark ? [mark] : []));
}
