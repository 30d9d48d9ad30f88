// The language that the page speaks. Texts stand where they are used, in English; another language
// is a table from these texts to its own.

import { remember, remembered } from "./memory.js";
import { wanted } from "./wanted.js";

const CHOSEN = "vouch-language"; // the visitor's own choice

export const LANGUAGES = { en: "English", de: "Deutsch", fr: "Français" };

const known = (tag) => tag?.slice(0, 2).toLowerCase() in LANGUAGES;

export const language = [wanted.language, remembered(CHOSEN), ...navigator.languages, "en"]
  .find(known).slice(0, 2).toLowerCase();

// A new language is two files beside these, and a line in LANGUAGES.
const TABLES = {
  en: () => ({ PAGE: {}, SERVICE: {} }),
  de: () => import("./languages/de.js"),
  fr: () => import("./languages/fr.js"),
};
const LATER_TABLES = {
  en: () => ({ LATER: {} }),
  de: () => import("./languages/later/de.js"),
  fr: () => import("./languages/later/fr.js"),
};

const { PAGE: table, SERVICE } = await TABLES[language]();

/** What the service says, by the English sentence; `learn` adds its problems and its judgement of a gallery. */
export const sentences = { ...SERVICE };

/** Load the sentences that a first answer does without; if they do not come, they stay English. */
export const learn = async () => {
  const { LATER } = await Promise.resolve(LATER_TABLES[language]()).catch(() => ({ LATER: {} }));
  Object.assign(sentences, LATER);
};

/** Speak another language from the next page on, that is, now. */
export function speak(chosen) {
  remember(CHOSEN, chosen);
  location.reload();
}

const plurals = new Intl.PluralRules(language);

/** The text of a template in the visitor's language. One with a value stands in the table as
 * "Sorted by {0}"; "{0|item|items}" is the first word where the value is one, else the second. A text
 * that the table lacks stays English. */
export function t(parts, ...values) {
  const name = parts.reduce((text, part, i) => `${text}{${i - 1}}${part}`);
  const words = table[name] ?? name;
  if (!values.length) return words;
  return words.replace(/\{(\d)(?:\|([^|}]*)\|([^}]*))?\}/g, (_, i, one, others) =>
    one === undefined ? values[i] : plurals.select(/\D/.test(values[i]) ? 2 : Number(values[i])) === "one" ? one : others);
}

/** Put the texts of elements marked data-t, and all labels, in a document or a part of it, into the
 * visitor's language. */
export function translate(root) {
  for (const node of root.querySelectorAll("[aria-label]")) node.ariaLabel = t([node.ariaLabel]);
  for (const node of root.querySelectorAll("[data-t]")) {
    node.textContent = t([node.textContent]);
    node.removeAttribute("data-t"); // it is done
  }
}
