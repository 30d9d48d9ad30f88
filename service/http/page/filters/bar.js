// Which items are wanted, by the values that the gallery's fields have.

import { askJson } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { said } from "../service_texts.js";
import { wanted } from "../wanted.js";
import { brief, count } from "../words.js";

const LISTED = 20; // values of a field
const NAMES = { label: () => t`Label` };

let made = 0; // so that the fields of each bar have distinct names

/** A bar that is opened where only some items are wanted. `changed` receives a filter, as the text
 * that the service takes, or null for all items. */
export function filterBar(gallery, changed) {
  const chosen = new Map(); // field → the filter on it
  const bar = (made += 1);
  const title = el("summary", {}, t`Filter`);
  const fields = el("div.fields", {});
  const status = el("p.note", { role: "status", "data-testid": "filter-status" });
  const clear = el("button", { type: "button", hidden: true, onclick: () => {
    chosen.clear();
    for (const input of fields.querySelectorAll("input")) {
      if (input.type === "checkbox") input.checked = false;
      else input.value = "";
    }
    for (const problem of fields.querySelectorAll("[role=status]")) problem.textContent = "";
    tell();
  } }, t`Clear the filter`);
  const element = el("details.filters", { "data-testid": "filters" }, title, fields,
    el("p.note", {}, t`Probabilities stay those of the whole gallery.`), clear, status);

  function tell() {
    const filters = [...chosen.values()];
    clear.hidden = !filters.length;
    title.textContent = filters.length ? t`Filter (${filters.length})` : t`Filter`;
    changed(!filters.length ? null
      : JSON.stringify(filters.length > 1 ? { and: filters } : filters[0]));
  }

  /** @param {string} field */
  const choose = (field) => (filter) => {
    if (filter) chosen.set(field, filter);
    else chosen.delete(field);
    tell();
  };

  async function open() {
    wanted.styled();
    status.textContent = t`Looking up the fields`;
    try {
      const { facets, reason } = await askJson("/v1/galleries/{gallery}/facets", {
        path: { gallery }, query: { limit: LISTED },
      });
      const shown = facets.map((facet, i) => part(facet, `filter-${bar}-${i}`, choose(facet.field)));
      fields.replaceChildren(...shown.filter(Boolean));
      status.textContent = fields.hasChildNodes() ? ""
        : reason ? said(reason) : t`The items have no fields to filter by.`;
    } catch (error) {
      status.textContent = reasonOf(error);
      element.addEventListener("toggle", open, { once: true });
    }
  }

  element.addEventListener("toggle", open, { once: true });
  return element;
}

/** What a field offers: its values, or the range of its numbers; null where it tells nothing.
 *
 * @param {Api.Facet} facet */
function part(facet, id, choose) {
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
