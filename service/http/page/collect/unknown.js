// Queries without a match in the gallery: queries in groups, each probably one new identity, which
// a person names.

import { askJson, deleteItem } from "../api.js";
import { dialogHeader, el, openDialog, picture } from "../elements.js";
import { language, t } from "../language.js";
import { forgetLabels } from "../look/finding.js";
import { reviewer, takeBack } from "../look/decisions.js";
import { reasonOf } from "../problem.js";
import { brief, count, percent } from "../words.js";

/** Open the groups of unknown photographs of `gallery`. `write`: the visitor may add them; `changed` is
 * called when the dialog closes after some were added.
 *
 * @param {Page.Gallery} gallery */
export async function openUnknown(gallery, { within, write, changed }) {
  const found = await askJson("/v1/galleries/{gallery}/unknown", { path: { gallery: gallery.name } });
  const status = el("p.status", { role: "status", "data-testid": "unknown-status" });
  let added = 0;
  status.textContent = found.n_groups
    ? t`${count(found.n_queries)} {0|photo|photos} matched nothing; ${count(found.n_grouped)} of them are in ${count(found.n_groups)} {2|group|groups}.`
    : t`${count(found.n_queries)} {0|photo|photos} matched nothing; no two of them probably show the same.`;
  const who = el("input", { type: "text", id: "unknown-who", maxLength: 100, value: reviewer.get(), autocomplete: "name",
    oninput: () => reviewer.set(who.value) });
  const groups = found.groups.map((group, i) => card(group, i, { gallery, write, told: (n) => { added += n; }, who }));
  const dialog = el("dialog.unknown", { "aria-labelledby": "unknown-title", "data-testid": "unknown" },
    dialogHeader(el("h2", { id: "unknown-title" }, t`Unknown photos`)), status,
    el("p.note", {}, t`Each group probably shows one thing that is not in the gallery. Untick photos that do not belong to it; give two groups the same name to merge them.`),
    write && groups.length ? el("p.who", {}, el("label", { htmlFor: "unknown-who" }, t`Decided by`), who)
      : el("p.note", {}, write ? "" : t`A key that may write is needed to name groups.`),
    groups);
  openDialog(dialog, within, () => {
    if (!added) return;
    forgetLabels(gallery.name);
    changed();
  });
}

/** @param {Api.UnknownGroup} group */
function card(group, i, { gallery, write, told, who }) {
  const { id, n, p_same: same, members, first_asked_at: first, last_asked_at: last } = group;
  const day = (at) => new Date(at).toLocaleDateString(language, { dateStyle: "medium" });
  const when = [...new Set([day(first), day(last)])].join(" – ");
  const chosen = new Set(members.map(({ query_id: one }) => one));
  const pictures = el("div.members", {}, members.map(({ query_id: one, image_url: url }, k) => el("label", {},
    write && el("input", { type: "checkbox", checked: true, "aria-label": t`Photo ${k + 1} belongs to the group`,
      onchange: ({ target }) => { chosen[target.checked ? "add" : "delete"](one); } }),
    picture(url, t`Photo ${k + 1}`, true))));
  const label = el("input", { type: "text", id: `unknown-label-${i}`, required: true, maxLength: 200 });
  const inSeries = el("input", { type: "checkbox", "data-testid": "unknown-series" });
  const heard = el("span.note", { role: "status" });
  const button = el("button", { type: "submit" }, t`Name and add`);
  const undo = el("button", { type: "button", hidden: true }, t`Undo`);
  /** @type {Api.EnrolledItem[]} */
  let items = [];

  async function enrol() {
    if (!reviewer.get()) {
      heard.textContent = t`Enter your name first: each decision is stored with it.`;
      return who.focus();
    }
    if (!chosen.size) {
      heard.textContent = t`Tick at least one photo.`;
      return;
    }
    ({ items } = await askJson("/v1/galleries/{gallery}/unknown/{group}/enrol", {
      method: "POST", path: { gallery: gallery.name, group: id },
      json: {
        label: label.value.trim(), query_ids: [...chosen], reviewer: reviewer.get(),
        ...(inSeries.checked && { metadata: { group: id } }),
      },
    }));
    told(items.length);
    heard.textContent = t`${count(items.length)} {0|photo is|photos are} in the gallery as “${brief(label.value.trim())}”.`;
    button.hidden = true;
    undo.hidden = false;
    undo.focus();
  }

  /** Take back the decisions and the items; what failed is left for another try. */
  async function undoAll() {
    while (items.length) {
      const [{ item_id: item, number }] = items;
      await takeBack(gallery.name, number);
      await deleteItem(gallery, item);
      items.shift();
      told(-1);
    }
    heard.textContent = t`Taken back.`;
    undo.hidden = true;
    button.hidden = false;
    button.focus();
  }

  const tried = (work) => work().catch((error) => { heard.textContent = reasonOf(error); });
  undo.onclick = () => tried(undoAll);
  return el("form.unknown-group", { "data-testid": "unknown-group", onsubmit: (event) => {
    event.preventDefault();
    if (label.value.trim()) tried(enrol);
  } },
  el("h3", {}, t`${count(n)} {0|photo|photos}`, el("small.note", {}, " ", [t`the same with ${percent(same)}`, when].join(" · "))),
  pictures,
  write ? el("p.actions", {}, el("label", { htmlFor: label.id }, t`Name`), label,
    el("label.series", {}, inSeries, t`one series, such as a burst`), button, undo, heard) : "");
}
