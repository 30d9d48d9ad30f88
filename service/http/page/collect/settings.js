// The texts, the name and the end of a gallery that was made over HTTP, such as on this page.

import { askJson } from "../api.js";
import { dialogHeader, el, openDialog, pressOnce } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { nameField } from "./creating.js";

/** Open the settings of a gallery. `changed` is called with its name once something has changed, or
 * with null once it is deleted.
 *
 * @param {Page.Gallery} gallery */
export function openSettings(gallery, { within, changed }) {
  const path = { gallery: gallery.name };
  const status = el("p.status", { role: "status", "data-testid": "settings-status" });
  const title = el("input", { type: "text", id: "settings-title-text", maxLength: 200, value: gallery.title ?? "" });
  const description = el("textarea", { id: "settings-description", maxLength: 4000, rows: 3, value: gallery.description ?? "" });
  const name = nameField("settings-name", { required: true, value: gallery.name });
  const confirm = el("input", { type: "text", id: "settings-confirm", autocomplete: "off", oninput: () => {
    erase.disabled = confirm.value !== gallery.name;
  } });
  const erase = el("button.danger", { type: "submit", disabled: true, onkeydown: pressOnce }, t`Delete the gallery`);

  /** Send a change; once it is made, the page shows the gallery anew. */
  async function send(sending, after) {
    status.textContent = "";
    try {
      await sending();
    } catch (error) {
      status.textContent = reasonOf(error);
      return;
    }
    dialog.close();
    changed(after);
  }

  const form = (heading, sending, ...parts) => el("form", { onsubmit: (event) => {
    event.preventDefault();
    sending();
  } }, el("h3", {}, heading), parts);
  const field = (input, words) => el("p", {}, el("label", { htmlFor: input.id }, words), input);

  const dialog = el("dialog.guarantees.settings", { "aria-labelledby": "settings-title", "data-testid": "settings" },
    dialogHeader(el("h2", { id: "settings-title" }, t`Gallery settings`)),
    form(t`Title and description`,
      () => send(() => askJson("/v1/galleries/{gallery}", {
        method: "PATCH", path, json: { title: title.value.trim(), description: description.value.trim() },
      }), gallery.name),
      field(title, t`Title`), field(description, t`Description`), el("button", { type: "submit" }, t`Save`)),
    form(t`Name`, () => send(() => askJson("/v1/galleries/{gallery}/rename", { method: "POST", path, json: { name: name.value } }), name.value),
      field(name, t`Small letters, digits, dots and hyphens.`),
      el("p.note", {}, t`The name is part of addresses: links to the old name no longer work.`),
      el("button", { type: "submit" }, t`Rename`)),
    form(t`Delete the gallery`,
      () => confirm.value === gallery.name && send(() => askJson("/v1/galleries/{gallery}", {
        method: "DELETE", path, query: { confirm: gallery.name },
      }), null),
      el("p.note", {}, t`All its items are deleted. It cannot be taken back.`),
      field(confirm, t`To confirm, type “${gallery.name}”`), erase),
    status);
  openDialog(dialog, within);
}
