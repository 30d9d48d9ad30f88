// Near duplicates: groups of items with nearly the same embedding, side by side, to be deleted or kept.

import { ask, mayWrite } from "../api.js";
import { el, picture, pressTwice } from "../elements.js";
import { t } from "../language.js";
import { brief, count, fixed } from "../words.js";
import { focusAfter, keptAsIs, openCheck } from "./checking.js";

/** Open the near duplicates of a gallery in a dialog `within` the page. */
export async function open(gallery, within) {
  const may = await mayWrite();
  const base = `/v1/galleries/${encodeURIComponent(gallery.name)}/items`;
  const addressOf = ({ id }) => `${base}/${id.split("/").map(encodeURIComponent).join("/")}`;
  const kept = keptAsIs(gallery, "near-duplicates");
  const list = el("ul.plain");
  let groups = new Map(); // id → the group of the item
  let gone = new Set(); // ids of deleted items

  /** Put an item and its near duplicates into one group; groups that share an item become one. */
  function join({ item, duplicates }) {
    const near = [item, ...duplicates];
    const joined = [...new Set(near.map(({ id }) => groups.get(id)).filter(Boolean))];
    const group = joined.shift() ?? { items: new Map(), least: 1, element: null };
    const before = group.items.size;
    for (const other of joined) {
      for (const one of other.items.values()) group.items.set(one.id, one);
      group.least = Math.min(group.least, other.least);
      other.element?.remove();
    }
    for (const one of near) if (!group.items.has(one.id)) group.items.set(one.id, one);
    group.least = Math.min(group.least, ...duplicates.map(({ similarity }) => similarity));
    for (const id of group.items.keys()) groups.set(id, group);
    if (group.items.size > before || !group.element) show(group);
  }

  const keyOf = (group) => JSON.stringify([...group.items.keys()].sort());

  function show(group) {
    if (kept.has(keyOf(group))) {
      group.element?.remove();
      group.element = null;
      return;
    }
    const items = [...group.items.values()];
    const labels = new Set(items.map(({ label }) => label));
    const done = el("p.status", { role: "status", "data-testid": "duplicates-done" });
    const keep = el("button", { type: "button", "data-testid": "keep-all" }, t`Keep all`);
    const undo = el("button", { type: "button", hidden: true, "data-testid": "undo-decision" }, t`Undo`);
    const element = el("li.suspect", { "data-testid": "duplicates" },
      el("div", {},
        el("p", {}, t`${count(items.length)} items, similarity ${fixed(group.least, 3)} or more`, ". ",
          labels.size > 1 ? el("strong", { "data-testid": "labels-differ" }, t`Their labels differ.`) : ""),
        el("div.side-by-side", {}, items.map((item) => figure(item, done, () => settle()))),
        el("p.actions", {}, keep, undo), done));
    /** One item is left, so nothing is to be decided. */
    const settle = () => {
      if (items.filter(({ id }) => !gone.has(id)).length > 1) return;
      element.dataset.decided = "yes";
      keep.hidden = true;
      focusAfter(element);
    };
    keep.onclick = () => {
      kept.add(keyOf(group));
      element.dataset.decided = "yes";
      [keep.hidden, undo.hidden] = [true, false];
      done.textContent = t`Kept. This browser does not list it again.`;
      focusAfter(element);
    };
    undo.onclick = () => {
      kept.remove(keyOf(group));
      delete element.dataset.decided;
      [keep.hidden, undo.hidden] = [false, true];
      done.textContent = "";
      keep.focus();
    };
    if (group.element) group.element.replaceWith(element);
    else list.append(element);
    group.element = element;
  }

  function figure(item, done, settle) {
    const erase = el("button.quiet", { type: "button", hidden: !may || gone.has(item.id), "data-testid": "delete-duplicate" }, t`Delete it`);
    const element = el("figure", {}, picture(item.preview_url ?? item.thumbnail_url, "", true),
      el("figcaption", {}, el("b", { dir: "auto" }, brief(item.label ?? "")), el("span.id", { dir: "auto", title: item.id }, item.id)), erase);
    element.classList.toggle("gone", gone.has(item.id));
    pressTwice(erase, t`Press again: it cannot be taken back`, async () => {
      erase.disabled = true;
      try {
        await ask(addressOf(item), { method: "DELETE" });
        gone.add(item.id);
        element.classList.add("gone");
        erase.hidden = true;
        done.textContent = t`“${brief(item.id)}” is no longer in the gallery.`;
        settle();
      } catch (error) {
        done.textContent = error.problem?.detail ?? String(error);
        erase.disabled = false;
      }
    });
    return element;
  }

  openCheck(gallery, within, {
    name: "near-duplicates", title: t`Near duplicates`, list,
    note: [
      t`Items with nearly the same embedding: copies, other sizes, and photos taken one after another.`,
      may ? "" : t`A key that may write is needed to delete items.`,
    ].join(" "),
    option: {
      name: "threshold", words: t`Minimum similarity`, chosen: 0.99,
      choices: [0.9999, 0.999, 0.99, 0.97, 0.95].map((value) => [value, fixed(value, value > 0.999 ? 4 : value > 0.99 ? 3 : 2)]),
    },
    begin: () => { [groups, gone] = [new Map(), new Set()]; },
    found: join,
    n: () => list.querySelectorAll(".suspect:not([data-decided])").length,
  });
}
