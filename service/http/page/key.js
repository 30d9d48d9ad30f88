// The visitor's key: asked for, shown with what it may do and what is left of its quotas, replaced,
// forgotten.

import { askJson, key } from "./api.js";
import { dialogHeader, el, openDialog } from "./elements.js";
import { t } from "./language.js";
import { said } from "./service_texts.js";
import { count, duration } from "./words.js";

/** @type {Record<string, () => string>} */
const SCOPES = {
  read: () => t`You may search and browse.`,
  review: () => t`You may search, browse and review.`,
  write: () => t`You may search, browse, review, and change items.`,
  admin: () => t`You may do everything, including settings.`,
};

/** A form for a key; `use` is given it. */
function keyInput(use, ...parts) {
  const input = el("input", {
    type: "password", id: "key-input", autocomplete: "off", spellcheck: false,
    required: true, pattern: "\\s*[!-~]+\\s*", title: t`Letters, digits and signs of ASCII`,
    "data-testid": "key-input",
  });
  const form = el("form", {
    "data-testid": "key-form",
    onsubmit: (event) => {
      event.preventDefault();
      key.set(input.value.trim());
      use();
    },
  }, parts,
  el("p.remedy", {}, el("label", { htmlFor: "key-input" }, t`API key`)),
  el("p.key", {}, input, el("button", { type: "submit" }, t`Use it`)),
  el("p.ids", {}, t`Kept in this tab alone, until you close it.`));
  return { form, input };
}

/** The form that asks for a key where the service refused a request with `problem`. `use` is called once
 * a key is given. */
export function keyForm({ detail }, use) {
  const wasRefused = key.get() !== null;
  key.forget();
  const { form, input } = keyInput(use,
    el("h2", {}, wasRefused ? t`This key is not accepted` : t`This service asks for a key`),
    wasRefused && el("p", {}, said(`${detail.split(". ")[0]}.`))); // then how programs send one
  form.classList.add("problem");
  return { form, input };
}

/** Show what the visitor's key may do. `changed` is called once another key is used, or none. */
export async function openKey({ within, changed }) {
  const usage = await askJson("/v1/usage");
  const { searches, created_galleries: created, max_items: most, galleries } = usage;
  const use = () => {
    dialog.close();
    changed();
  };
  const { form } = keyInput(use, el("h3", {}, usage.key === null ? t`Use a key` : t`Use another key`));
  const dialog = el("dialog.guarantees", { "aria-labelledby": "key-title", "data-testid": "key" },
    dialogHeader(el("h2", { id: "key-title" }, t`Your key`)),
    el("ul.plain", { "data-testid": "usage" }, [
      usage.key === null ? t`No key is used.` : t`Key: ${usage.name ?? usage.key}.`,
      SCOPES[usage.scope]?.() ?? usage.scope,
      galleries && t`Galleries: ${galleries.join(", ")}.`,
      searches && t`${count(searches.used)} of ${count(searches.limit)} searches used. The count resets in ${duration(searches.resets_in_s)}.`,
      created && t`${count(created.used)} of ${count(created.limit)} galleries created.`,
      most !== null && t`At most ${count(most)} items in a gallery.`,
    ].filter(Boolean).map((words) => el("li", {}, words))),
    form,
    key.get() !== null && el("p", {}, el("button.quiet", {
      type: "button", "data-testid": "forget-key", onclick: () => { key.forget(); use(); },
    }, t`Forget this key`)));
  openDialog(dialog, within);
}
