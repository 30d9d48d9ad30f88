// The language that the page speaks. Texts stand where they are used, in English; another language
// is a table from these texts to its own.

import { GERMAN } from "./german.js";
import { remember, remembered } from "./memory.js";

const TABLES = { en: {}, de: GERMAN };
const CHOSEN = "vouch-language"; // the visitor's own choice

export const LANGUAGES = { en: "English", de: "Deutsch" };

const known = (tag) => tag?.slice(0, 2).toLowerCase() in TABLES;

export const language = [remembered(CHOSEN), ...navigator.languages, "en"]
  .find(known).slice(0, 2).toLowerCase();

const table = TABLES[language];

/** Speak another language from the next page on, that is, now. */
export function speak(chosen) {
  remember(CHOSEN, chosen);
  location.reload();
}

/** The text of a template in the visitor's language. One with a value stands in the table as
 * "Sorted by {0}". A text that the table lacks stays English. */
export function t(parts, ...values) {
  const name = parts.reduce((text, part, i) => `${text}{${i - 1}}${part}`);
  const words = table[name] ?? name;
  return values.length ? words.replace(/\{(\d)\}/g, (_, i) => values[i]) : words;
}

/** Put the document's own texts, of elements marked data-t, into the visitor's language. */
export function translateDocument() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-t]")) {
    node.textContent = t([node.textContent]);
  }
}
