// What the service says, in the visitor's language. It says it in English sentences, which the table
// of a language has with {0}, {1} for the values in them; one that the table lacks stays English.

import { el } from "./elements.js";
import { sentences } from "./language.js";

const ANY = "([^]*?)"; // a value within a sentence
const FIRST = "(?<=^|[.:!?]\\s)((?:(?![.:!?]\\s)[^])*?)"; // one that begins it, and not the sentence before

/** A pattern of a sentence, and which value each of its groups is. */
function pattern(sentence) {
  const literal = (text) => text.replace(/[.*+?^$()|[\]\\{}]/g, "\\$&");
  const parts = sentence.split(/\{\d\}/).map(literal);
  return new RegExp((parts[0] ? parts.join(ANY) : FIRST + parts.slice(1).join(ANY)) +
    (sentence.endsWith(".") ? "(?=\\s|$)" : ""), "g"); // a point in a number ends nothing
}

// The longest first: a short one may be a part of it.
const patterns = Object.entries(sentences).sort(([a], [b]) => b.length - a.length)
  .map(([sentence, own]) => [pattern(sentence), own]);

/** A text of the service in the visitor's language. */
export const said = (text) => patterns.reduce((all, [wanted, own]) =>
  all.replace(wanted, (_, ...values) => own.replace(/\{(\d)\}/g, (__, i) => values[i])), text);

/** The same in parts: what stands between backticks is code. */
export const saidParts = (text) =>
  said(text).split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

/** The sentences that a build ended with, as entries of a list.
 *
 * @param {Api.OutcomeLine[]} lines */
export const outcomeLines = (lines) => lines.map(({ severity, sentence }) =>
  el(severity === "fact" ? "li" : "li.warning", {}, saidParts(sentence)));
