// What the fields of a gallery offer to filter by.

import { el } from "../elements.js";
import { t } from "../language.js";
import { brief, count } from "../words.js";

export const LISTED = 20; // values of a field
const NAMES = { label: () => t`Label` };

/** What a field offers: its values, or the range of its numbers; null where it tells nothing.
 *
 * @param {Api.Facet} facet */
export function fieldPart(facet, id, choose) {
  const { field, n_values: n, values, least, greatest } = facet;
  const name = NAMES[field]?.() ?? field;
  if (least !== null && least < greatest && n > LISTED) return range(facet, name, id, choose);
  if (!values.length || n < 2) return null;
  const boxes = values.map(() => el("input", { type: "checkbox", onchange: () =>
    choose(filterOf(facet, values.filter((_, i) => boxes[i].checked).map(({ value }) => value))) }));
  return el("fieldset", {}, el("legend", { dir: "auto" }, brief(name)),
    el("div.values", {}, values.map(({ value, n_items: items }, i) => el("label", {},
      boxes[i],
      el("span", { dir: "auto" }, brief(String(value))), el("small", {}, count(items))))),
    n > values.length && el("p.note", {}, t`and ${count(n - values.length)} more {0|value|values}`));
}

/** @param {Api.Facet} facet */
function filterOf({ field, comparison }, values) {
  if (!values.length) return null;
  if (comparison === "eq") return { [field]: { in: values } };
  const each = values.map((value) => ({ [field]: { has: value } }));
  return each.length > 1 ? { or: each } : each[0];
}

/** @param {Api.Facet} facet */
function range({ field, least, greatest }, name, id, choose) {
  const ends = [["gte", t`from`, least], ["lte", t`to`, greatest]].map(([comparison, words, end]) =>
    [comparison, words, el("input", {
      type: "number", id: `${id}-${comparison}`, step: "any", placeholder: String(end), onchange,
    })]);

  const problem = el("p.warning", { role: "status" });

  function onchange() {
    const given = ends.filter(([, , input]) => input.value !== "" && input.validity.valid);
    const [from, to] = given.map(([, , input]) => input.valueAsNumber);
    problem.textContent = from > to ? t`No item can pass: “from” is greater than “to”.` : "";
    choose(given.length ? { [field]: Object.fromEntries(given.map(([comparison, , input]) =>
      [comparison, input.valueAsNumber])) } : null);
  }

  return el("fieldset", {}, el("legend", { dir: "auto" }, brief(name)),
    el("div.range", {}, ends.map(([, words, input]) =>
      [el("label", { htmlFor: input.id }, words), input])), problem);
}
