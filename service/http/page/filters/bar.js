// Which items are wanted, by the values that the gallery's fields have.

import { arrived, askJson } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { said } from "../service_texts.js";

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
    status.textContent = t`Looking up the fields`;
    try {
      const { LISTED, fieldPart } = await arrived(import("./fields.js"));
      const { facets, reason } = await askJson("/v1/galleries/{gallery}/facets", {
        path: { gallery }, query: { limit: LISTED },
      });
      const shown = facets.map((facet, i) => fieldPart(facet, `filter-${bar}-${i}`, choose(facet.field)));
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
