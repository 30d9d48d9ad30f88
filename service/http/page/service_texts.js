// What the service says, in the visitor's language. It says it in English sentences, which the table
// of a language has with {0}, {1} for the values in them; one that the table lacks stays English.

import { el } from "./elements.js";
import { language, sentences } from "./language.js";

const ANY = "([^]*?)"; // a value within a sentence
const FIRST = "(?<=^|[.:!?]\\s)((?:(?![.:!?]\\s)[^])*?)"; // one that begins it, and not the sentence before

/** A pattern of a sentence, and which value each of its groups is. */
function pattern(sentence) {
  const literal = (text) => text.replace(/[.*+?^$()|[\]\\{}]/g, "\\$&");
  const parts = sentence.split(/\{\d\}/).map(literal);
  return new RegExp((parts[0] ? parts.join(ANY) : FIRST + parts.slice(1).join(ANY)) +
    (sentence.endsWith(".") ? "(?=\\s|$)" : ""), "g"); // a point in a number ends nothing
}

let made = [];

/** The patterns of all sentences that are loaded, the longest first: a short one may be a part of it. */
function patterns() {
  const all = Object.entries(sentences);
  if (made.length !== all.length) {
    made = all.sort(([a], [b]) => b.length - a.length).map(([sentence, own]) => [pattern(sentence), own.split("`")]);
  }
  return made;
}

const signs = Object.fromEntries(new Intl.NumberFormat(language).formatToParts(12345.6)
  .map(({ type, value }) => [type, value]));

/** A value of a sentence: a number with the signs of the visitor's language. */
const local = (value) => !/^\d{1,3}(,\d{3})*(\.\d+)?(\s?%)?$|^\d+\.\d+(\s?%)?$/.test(value) ? value
  : value.replace(/[,.]/g, (sign) => signs[sign === "," ? "group" : "decimal"]);

/** A text of the service in the visitor's language. Between backticks is code, which has no language. */
export const said = (text) => patterns().reduce((all, [wanted, own]) =>
  all.replace(wanted, (_, ...values) => own.map((part, code) => part.replace(/\{(\d)\}/g, (__, i) =>
    (code % 2 ? values[i] : local(values[i])))).join("`")), text);

/** The same in parts: what stands between backticks is code. */
export const saidParts = (text) =>
  said(text).split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

/** The sentences that a build ended with, as entries of a list.
 *
 * @param {Api.OutcomeLine[]} lines */
export const outcomeLines = (lines) => lines.map(({ severity, sentence }) =>
  el(severity === "fact" ? "li" : "li.warning", {}, saidParts(sentence)));
