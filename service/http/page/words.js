// What Vouch's numbers mean, in plain words.

import { language, t } from "./language.js";
import { said } from "./service_texts.js";

export const NBSP = "\u00a0";

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (n) => n.toLocaleString(language);

/** A number with so many decimals, as the visitor's language writes it. */
export const fixed = (value, decimals) => value.toLocaleString(language, {
  minimumFractionDigits: decimals, maximumFractionDigits: decimals, useGrouping: false,
});

const UNITS = /** @type {const} */ ([["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]);

/** A length of time in its largest unit, rounded up: "5 hours".
 *
 * @param {number} seconds */
export function duration(seconds) {
  const [unit, size] = UNITS.find(([, size]) => seconds >= size) ?? UNITS[3];
  const format = new Intl.NumberFormat(language, { style: "unit", unit, unitDisplay: "long" });
  return format.format(Math.ceil(seconds / size));
}

const MOST_CHARACTERS = 80;

/** A name within a sentence: of a long one its beginning. */
export const brief = (name) =>
  name?.length > MOST_CHARACTERS ? `${name.slice(0, MOST_CHARACTERS)}…` : name;

/** "97 %". Near both ends a decimal more, and never a rounded certainty. */
export function percent(share) {
  const value = 100 * share;
  if (value > 99.9 && value < 100) return t`over ${fixed(99.9, 1)}${NBSP}%`;
  if (value < 0.1 && value > 0) return t`under ${fixed(0.1, 1)}${NBSP}%`;
  const digits = (value > 99 && value < 100) || (value < 1 && value > 0) ? 1 : 0;
  return `${fixed(value, digits)}${NBSP}%`;
}

/** @type {Record<Api.SearchAnswer["verdict"], Page.Wording>} */
export const VERDICTS = {
  match: {
    word: t`Match`,
    legend: t`A confident match: the first result is right, within the guaranteed error.`,
    says: ({ results: [first], line }) => {
      const name = brief(first?.label ?? first?.id);
      const p = first?.match_probability;
      return isNumber(line) ? t`Above your line of ${percent(line)}: “${name}” (${percent(p)}).`
        : isNumber(p) ? t`Confident match: “${name}” (${percent(p)}).` : t`Confident match: “${name}”.`;
    },
    heading: t`Results by similarity`,
    shows: true,
  },
  ambiguous: {
    word: t`Not sure`,
    legend: t`Possible matches: please check them.`,
    says: ({ line }) => isNumber(line)
      ? t`Below your line of ${percent(line)}: please check.` : t`Possible matches – please check.`,
    heading: t`Possible matches`,
    shows: true,
  },
  no_match: {
    word: t`No match`,
    legend: t`Nothing in the gallery matches the photo.`,
    says: ({ query: { ood }, filtered }) => filtered ? t`None of the filtered items matches your photo.` : ood.flag === false
      ? t`A typical photo, but nothing in this gallery matches it.`
      : t`Nothing in this gallery matches your photo.`,
    heading: t`Look-alikes (unverified)`,
    note: t`The most similar items, for comparison. They are not matches.`,
    subordinate: true,
  },
  out_of_distribution: {
    word: t`Not recognised`,
    legend: t`Unlike the photos that the gallery was set up for.`,
    says: () => t`Unlike the photos this gallery was set up for. The items below are look-alikes.`,
    heading: t`Look-alikes (unverified)`,
    note: t`Match probabilities are valid for typical photos only, so none are shown.`,
    subordinate: true,
    withholds: true,
  },
  not_calibrated: {
    word: t`Not calibrated`,
    legend: t`No probabilities: the gallery has no calibration.`,
    says: () => t`This gallery has no calibration, so its results have no probabilities.`,
    heading: t`Results by similarity (unverified)`,
    note: t`No match probabilities: “Set up guarantees” calibrates the gallery.`,
  },
};

export const DECISIONS = {
  is: (name) => t`It is “${name}”.`,
  wrong: (name) => t`It is not “${name}”.`,
  none: () => t`It is none of these.`,
  new: (name) => t`It is new: “${name}” is in the gallery now.`,
  unknown: () => t`It is new.`,
};

/** What a person has decided of a photograph.
 *
 * @param {{ kind: keyof typeof DECISIONS, item: Page.Decision["item"] }} decision */
export const decisionSentence = ({ kind, item }) => DECISIONS[kind](brief(item?.label ?? item?.id));

export const REMEDIES = {
  images_not_taken: t`Search in another gallery: this one is searched with vectors alone.`,
  text_unavailable: t`Search with a photo: this gallery is not searched in words.`,
  invalid_text: t`Describe it in one sentence.`,
  0: t`Check that the service is running and that you are online, then try again.`,
  400: t`Try another image.`,
  404: t`Reload the page to see what is served now.`,
  413: t`Scale the image down, then try again.`,
  415: t`Save it as JPEG, PNG or WebP, then try again.`,
  422: t`Try another image, or open this one and save it again as JPEG or PNG.`,
  503: t`The service is busy or starting. Wait a moment, then try again.`,
};

/** @param {Api.Uncertainty} uncertainty
 * @param {number} nQueries */
export function uncertaintySentence({ value, percentile }, nQueries) {
  if (!isNumber(value)) return t`Unknown: the encoder gives no variance.`;
  if (!isNumber(percentile)) return t`Nothing to compare it with: the gallery is not calibrated.`;
  const all = nQueries ? t`${count(nQueries)} ordinary queries` : t`ordinary queries`;
  if (percentile <= 0) return t`None of the ${all} was more certain.`;
  if (percentile >= 100) return t`All of the ${all} were more certain.`;
  return percentile <= 50
    ? t`More certain than ${percent(1 - percentile / 100)} of ordinary queries.`
    : t`Less certain than ${percent(percentile / 100)} of ordinary queries.`;
}

/** The aleatoric half; empty where it is not known.
 *
 * @param {Api.PictureState} aleatoric */
export function pictureSentence(aleatoric) {
  if (!isNumber(aleatoric?.percentile)) return "";
  const { percentile } = aleatoric;
  if (percentile <= 50) {
    return t`State of the picture: better than ${percent(1 - percentile / 100)} of ordinary pictures.`;
  }
  const worse = percentile >= 100
    ? t`State of the picture: worse than all ordinary pictures.`
    : t`State of the picture: worse than ${percent(percentile / 100)} of ordinary pictures.`;
  return percentile < 90 ? worse : t`${worse} Try a sharp, bright one.`;
}

/** What calibration queries were, and of what kind those are that are like them.
 *
 * @type {Partial<Record<Api.CalibrationReport["queries"], string>>} */
export const QUERIES = {
  held_out_images: t`held-out images`,
  left_out_items: t`of its items`,
  views_of_items: t`augmented views of its items`,
  captions: t`captions`,
};

const ROUGH = t` Rough estimate: no such photos were available when it was set up.`;

/** @type {Record<Api.AbsentShare["basis"], string>} */
const ABSENT_FROM = {
  absent_labels: t` Estimated with photos that have no match in it.`,
  hidden_labels: t` Estimated with photos whose label was hidden from the results.`,
  hidden_trained_labels: ROUGH,
  near_misses_of_views: ROUGH,
};

/** @type {Partial<Record<Api.AbsentShare["origin"], string>>} */
export const SHARE_FROM = {
  request: t` (set by the request)`,
  key: t` (set by your key)`,
  adopted: t` (set by the operator)`,
};

/** For which share of photos that are not in the gallery a probability is given, and why.
 *
 * @param {Pick<Api.AbsentShare, "share" | "origin" | "basis">} absent */
export const absentSentence = ({ share, origin, basis }) =>
  t`Assumes that ${percent(share)} of photos are not in the gallery${SHARE_FROM[origin] ?? ""}.` +
    (ABSENT_FROM[basis] ?? "");

/** The estimated share of queries without a match; "" without an estimate.
 *
 * @param {Api.AbsentState} absent */
export function estimateSentence({ estimated, interval, is_hint: isHint, used }) {
  if (!isNumber(estimated)) return "";
  const range = interval ? t` (${percent(interval[0])} to ${percent(interval[1])})` : "";
  return t`About ${percent(estimated)} of recent photos${range} are probably not in the gallery` +
    (isHint ? t` (a rough estimate). Probabilities assume ${percent(used)}.` : t`. Probabilities assume ${percent(used)}.`);
}

/** @param {Api.OutOfDistribution} ood */
export function outlierSentence({ p_value: p, alpha, flag, reason }) {
  if (!isNumber(p)) return t`Not tested: the gallery is not calibrated.`;
  if (reason) return said(reason);
  return flag
    ? t`More unusual than ${percent(1 - p)} of the calibration photos. The limit is ${percent(1 - alpha)}.`
    : t`More typical than ${percent(p)} of the calibration photos.`;
}
