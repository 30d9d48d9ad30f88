// The search in words, of galleries whose encoder reads texts: its form, and how its answers are worded.

import { PHOTO_WORDS } from "../answer.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { said } from "../service_texts.js";
import { SHARE_FROM, isNumber, percent } from "../words.js";

const LONGEST = 2000; // characters, as the service takes

/** The form of a search in words, filled with `text`; `ask` is given what is entered. */
export function textForm(text, ask) {
  const input = el("input", {
    type: "search", id: "text-input", "data-testid": "text-input", value: text ?? "", required: true,
    maxLength: LONGEST, pattern: ".*\\S.*", title: t`Some words`, autocomplete: "off", dir: "auto", enterKeyHint: "search",
  });
  return el("form.in-words", { role: "search", "data-testid": "text-form", onsubmit: (event) => {
    event.preventDefault();
    ask(input.value.trim());
  } },
  el("label", { htmlFor: input.id }, t`Or describe it in words`), input,
  el("button", { type: "submit" }, t`Search`));
}

// Where an answer to words says something else than one to a photograph.
const VERDICTS = {
  no_match: {
    says: ({ filtered }) => (filtered ? t`None of the filtered items matches your words.` : t`Nothing in this gallery matches your words.`),
    heading: t`Nearest items (unverified)`,
  },
  out_of_distribution: {
    says: () => t`Unlike the texts this gallery was calibrated with. The items below are only the nearest ones.`,
    heading: t`Nearest items (unverified)`,
    note: t`Match probabilities are valid for typical texts only, so none are shown.`,
  },
  not_calibrated: {
    says: () => t`This gallery is not calibrated for texts, so the results have no probabilities.`,
    note: "", // the reason of the answer has the advice
  },
};

/** How an answer to a text is worded; the names are those of `PHOTO_WORDS`. */
export const TEXT_WORDS = {
  verdictOf: (answer) => ({ ...PHOTO_WORDS.verdictOf(answer), ...VERDICTS[answer.verdict] }),
  asked: (_, { text }) => el("figure.asked-text", {}, el("blockquote", { title: text, dir: "auto" }, text),
    el("figcaption", {}, t`Your words`)),
  isTypical: t`Typical text? `,
  outlierSentence: ({ p_value: p, alpha, flag, reason }) => {
    if (!isNumber(p)) return t`Not tested: the gallery is not calibrated for texts.`;
    if (reason) return said(reason);
    return flag
      ? t`More unusual than ${percent(1 - p)} of the calibration texts. The limit is ${percent(1 - alpha)}.`
      : t`More typical than ${percent(p)} of the calibration texts.`;
  },
  absentSentence: ({ share, origin }) =>
    t`Assumes that ${percent(share)} of texts match nothing in the gallery${SHARE_FROM[origin] ?? ""}.`,
  calibratedWith: (n, queries) =>
    t`This gallery was calibrated for texts with ${n} ${queries}. Each small dot stands for 2 % of them; the large dot is your text.`,
};
