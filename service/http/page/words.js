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

export const VERDICTS = {
  match: {
    word: t`Match`,
    legend: t`Vouch stands behind the first result.`,
    says: ({ results: [first], line }) => isNumber(line)
      ? t`Above your line of ${percent(line)}: “${brief(first.label ?? first.id)}” is a true match with probability ${percent(first.match_probability)}.`
      : t`Vouch stands behind the first result` + (first?.label ? `, “${brief(first.label)}”` : "") +
      (isNumber(first?.match_probability)
        ? t`: a true match with probability ${percent(first.match_probability)}.` : "."),
    heading: t`Ranked by similarity`,
  },
  ambiguous: {
    word: t`Not sure`,
    legend: t`Something may match. Look before you rely on it.`,
    says: ({ line }) => isNumber(line)
      ? t`Below your line of ${percent(line)}. Compare by eye before you rely on it.`
      : t`Something here may match, but not safely. Compare by eye before you rely on it.`,
    heading: t`Candidates, to be checked by eye`,
  },
  no_match: {
    word: t`No match`,
    legend: t`A fair question, but the gallery does not hold the answer.`,
    says: ({ query: { ood } }) => ood.flag === false
      ? t`An ordinary kind of image, but nothing in this gallery matches it.`
      : t`Nothing in this gallery matches your image.`,
    heading: t`Nearest items, none of which Vouch vouches for`,
    note: t`Something is always nearest. That does not make it a match.`,
    subordinate: true,
  },
  out_of_distribution: {
    word: t`I don’t know`,
    legend: t`Not the kind of image the model was made for.`,
    says: () => t`This is not the kind of image the model knows. Any resemblance below is a guess.`,
    heading: t`Nearest items, none of which Vouch vouches for`,
    note: t`Match probabilities hold for ordinary images only, so none are shown for this one.`,
    subordinate: true,
    withholds: true,
  },
  not_calibrated: {
    word: t`Can’t say`,
    legend: t`Never calibrated, so no probability is invented.`,
    says: () => t`This gallery has not been calibrated. Vouch ranks it but invents no probability.`,
    heading: t`Ranked by similarity, not vouched for`,
    note: t`No match probabilities: run \`vouch-build calibrate\` to get them.`,
  },
};

const DECISIONS = {
  is: (name) => t`It is “${name}”.`,
  wrong: (name) => t`It is not “${name}”.`,
  none: () => t`It is none of these.`,
  new: (name) => t`It is new: “${name}” is in the gallery now.`,
  stranger: () => t`It is new.`,
};

/** What a person has decided of a photograph. */
export const decisionSentence = ({ kind, item }) => DECISIONS[kind](brief(item?.label ?? item?.id));

export const REMEDIES = {
  images_not_taken: t`Search in another gallery: this one is searched with vectors alone.`,
  0: t`Check that the service is running and that you are online, then try again.`,
  400: t`Try another image.`,
  404: t`Reload the page to see what is served now.`,
  413: t`Scale the image down, then try again.`,
  415: t`Save it as JPEG, PNG or WebP, then try again.`,
  422: t`Try another image, or open this one and save it again as JPEG or PNG.`,
  503: t`The service is busy or starting. Wait a moment, then try again.`,
};

export function uncertaintySentence({ value, percentile }, nQueries) {
  if (!isNumber(value)) return t`Nobody knows: the encoder gives no variance.`;
  if (!isNumber(percentile)) return t`Nothing to compare it with: the gallery is not calibrated.`;
  const all = nQueries ? t`${count(nQueries)} ordinary queries` : t`ordinary queries`;
  if (percentile <= 0) return t`None of the ${all} was more certain.`;
  if (percentile >= 100) return t`All of the ${all} were more certain.`;
  return percentile <= 50
    ? t`More certain than ${percent(1 - percentile / 100)} of ordinary queries.`
    : t`Less certain than ${percent(percentile / 100)} of ordinary queries.`;
}

/** The aleatoric half; empty where it is not known. */
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

/** What calibration queries were, and of what kind those are that are like them. */
export const QUERIES = {
  held_out_images: t`held-out images`,
  left_out_items: t`items, each left out of its own list`,
  views_of_items: t`views made of its own items`,
};

const ABSENT_FROM = {
  absent_labels: t`images of labels that were kept out of it`,
  hidden_labels: t`images whose own label was hidden from it, which only resemble such images`,
  hidden_trained_labels: t`images whose own label was hidden from it, though not from its encoder, which say little of such images`,
  near_misses_of_views: t`its own items, each hidden from its list, which say little of such images`,
};

const SHARE_FROM = {
  request: t` (as was asked for)`,
  key: t` (as your key says)`,
  adopted: t` (as the operator of the gallery says)`,
};

/** For which share of images that show nothing in the gallery a probability is given, and why. */
export function absentSentence({ share, origin, basis }) {
  const judged = ABSENT_FROM[basis];
  return t`If ${percent(share)} of images show nothing that this gallery holds${SHARE_FROM[origin] ?? ""}.` +
    (judged ? t` Judged by ${judged}.` : "");
}

/** How often nothing is found, as far as that was estimated; "" where it was not. */
export function estimateSentence({ estimated, interval, is_hint: isHint, used }) {
  if (!isNumber(estimated)) return "";
  const range = interval ? t` (${percent(interval[0])} to ${percent(interval[1])})` : "";
  return t`About ${percent(estimated)} of recent images${range} seem to show nothing that it holds` +
    (isHint ? t`: a hint only. Probabilities are for ${percent(used)}.` : t`. Probabilities are for ${percent(used)}.`);
}

export function outlierSentence({ p_value: p, alpha, flag, reason }, nQueries) {
  if (!isNumber(p)) return t`Not tested: the gallery is not calibrated.`;
  if (reason) return said(reason);
  const many = Math.round(1000 * p);
  const bound = p * (nQueries + 1) < 1.5 ? t`at most ` : ""; // stranger than all of them
  const strange = many < 1 ? t`fewer than 1 looks`
    : many > 1 ? t`${bound}about ${count(many)} look` : t`${bound}about ${count(many)} looks`;
  const line = `${count(Number((1000 * alpha).toFixed(1)))} (α${NBSP}=${NBSP}${alpha})`;
  const told = flag ? t`The line is at ${line}, so it is flagged.` : t`The line is at ${line}: not flagged.`;
  return `${t`Of 1,000 ordinary images, ${strange} at least this strange.`} ${told}`;
}
