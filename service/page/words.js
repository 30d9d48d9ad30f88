// What Vouch's numbers mean, in plain words.

import { t } from "./language.js";

export const NBSP = "\u00a0";

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const count = (n) => n.toLocaleString("en");

const MOST_CHARACTERS = 80;

/** A name within a sentence: of a long one its beginning. */
export const brief = (name) =>
  name?.length > MOST_CHARACTERS ? `${name.slice(0, MOST_CHARACTERS)}…` : name;

/** "97 %". Near both ends a decimal more, and never a rounded certainty. */
export function percent(share) {
  const value = 100 * share;
  if (value > 99.9 && value < 100) return `over 99.9${NBSP}%`;
  if (value < 0.1 && value > 0) return `under 0.1${NBSP}%`;
  const digits = (value > 99 && value < 100) || (value < 1 && value > 0) ? 1 : 0;
  return `${value.toFixed(digits)}${NBSP}%`;
}

export const VERDICTS = {
  match: {
    word: "Match",
    legend: "Vouch stands behind the first result.",
    says: ({ results: [first], line }) => isNumber(line)
      ? t`Above your line of ${percent(line)}: “${brief(first.label ?? first.id)}” is a true match with probability ${percent(first.match_probability)}.`
      : `Vouch stands behind the first result${first?.label ? `, “${brief(first.label)}”` : ""}` +
      (isNumber(first?.match_probability)
        ? `: a true match with probability ${percent(first.match_probability)}.` : "."),
    heading: "Ranked by similarity",
  },
  ambiguous: {
    word: "Not sure",
    legend: "Something may match. Look before you rely on it.",
    says: ({ line }) => isNumber(line)
      ? t`Below your line of ${percent(line)}. Compare by eye before you rely on it.`
      : "Something here may match, but not safely. Compare by eye before you rely on it.",
    heading: "Candidates, to be checked by eye",
  },
  no_match: {
    word: "No match",
    legend: "A fair question, but the gallery does not hold the answer.",
    says: ({ query: { ood } }) => ood.flag === false
      ? "An ordinary kind of image, but nothing in this gallery matches it."
      : "Nothing in this gallery matches your image.",
    heading: "Nearest items, none of which Vouch vouches for",
    note: "Something is always nearest. That does not make it a match.",
    subordinate: true,
  },
  out_of_distribution: {
    word: "I don’t know",
    legend: "Not the kind of image the model was made for.",
    says: () => "This is not the kind of image the model knows. Any resemblance below is a guess.",
    heading: "Nearest items, none of which Vouch vouches for",
    note: "Match probabilities hold for ordinary images only, so none are shown for this one.",
    subordinate: true,
    withholds: true,
  },
  not_calibrated: {
    word: "Can’t say",
    legend: "Never calibrated, so no probability is invented.",
    says: () => "This gallery has not been calibrated. Vouch ranks it but invents no probability.",
    heading: "Ranked by similarity, not vouched for",
    note: "No match probabilities: run `vouch-build calibrate` to get them.",
  },
};

const DECISIONS = {
  is: (name) => t`It is “${name}”.`,
  wrong: (name) => t`It is not “${name}”.`,
  none: () => t`It is none of these.`,
  new: (name) => t`It is new: “${name}” is in the gallery now.`,
};

/** What a person has decided of a photograph. */
export const decisionSentence = ({ kind, item }) => DECISIONS[kind](brief(item?.label ?? item?.id));

export const REMEDIES = {
  0: "Check that the service is running and that you are online, then try again.",
  400: "Try another image.",
  404: "Reload the page to see what is served now.",
  413: "Scale the image down, then try again.",
  415: "Save it as JPEG, PNG or WebP, then try again.",
  422: "Try another image, or open this one and save it again as JPEG or PNG.",
  503: "The service is busy or starting. Wait a moment, then try again.",
};

export function uncertaintySentence({ percentile }, nQueries) {
  if (!isNumber(percentile)) return "Nothing to compare it with: the gallery is not calibrated.";
  const all = nQueries ? `${count(nQueries)} ordinary queries` : "ordinary queries";
  if (percentile <= 0) return `None of the ${all} was more certain.`;
  if (percentile >= 100) return `All of the ${all} were more certain.`;
  return percentile <= 50
    ? `More certain than ${percent(1 - percentile / 100)} of ordinary queries.`
    : `Less certain than ${percent(percentile / 100)} of ordinary queries.`;
}

/** What calibration queries were, and of what kind those are that are like them. */
export const QUERIES = {
  held_out_images: "held-out images",
  views_of_items: "views made of its own items",
};

const ABSENT_FROM = {
  absent_labels: "images of labels that were kept out of it",
  hidden_labels: "images whose own label was hidden from it, which only resemble such images",
  hidden_trained_labels: "images whose own label was hidden from it, though not from its encoder, which say little of such images",
  near_misses_of_views: "its own items, each hidden from its list, which say little of such images",
};

const SHARE_FROM = {
  request: " (as was asked for)",
  key: " (as your key says)",
  estimated: " (estimated from recent queries)",
};

/** For which share of images that show nothing in the gallery a probability is given, and why. */
export function absentSentence({ share, origin, basis }) {
  const judged = ABSENT_FROM[basis];
  return `If ${percent(share)} of images show nothing that this gallery holds${SHARE_FROM[origin] ?? ""}.` +
    (judged ? ` Judged by ${judged}.` : "");
}

/** How often nothing is found, as far as that was estimated; "" where it was not. */
export function estimateSentence({ estimated, interval, is_hint: isHint, used }) {
  if (!isNumber(estimated)) return "";
  const range = interval ? ` (${percent(interval[0])} to ${percent(interval[1])})` : "";
  return `About ${percent(estimated)} of recent images${range} seem to show nothing that it holds` +
    (isHint ? `: a hint only, ${percent(used)} is reckoned with.` : ".");
}

export function outlierSentence({ p_value: p, alpha, flag, reason }, nQueries) {
  if (!isNumber(p)) return "Not tested: the gallery is not calibrated.";
  if (reason) return reason;
  const many = Math.round(1000 * p);
  const bound = p * (nQueries + 1) < 1.5 ? "at most " : ""; // stranger than all of them
  const strange = many < 1 ? "fewer than 1 looks"
    : `${bound}about ${count(many)} look${many > 1 ? "" : "s"}`;
  const line = `${count(Number((1000 * alpha).toFixed(1)))} (α${NBSP}=${NBSP}${alpha})`;
  return `Of 1,000 ordinary images, ${strange} at least this strange. ` +
    `The line is at ${line}${flag ? ", so it is flagged." : ": not flagged."}`;
}
