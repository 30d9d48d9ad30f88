// Near duplicates: groups of items with nearly the same embedding, side by side. Some are marked, and
// all marked ones deleted at once; others are kept.

import { deleteItem, mayWrite, patiently } from "../api.js";
import { el, picture, pressTwice } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { brief, count, fixed } from "../words.js";
import { focusAfter, keptAsIs, openCheck } from "./checking.js";

/** Open the near duplicates of a gallery in a dialog `within` the page, which calls `closed` at its end.
 *
 * @param {Page.Gallery} gallery */
export async function open(gallery, within, closed) {
  const may = await mayWrite();
  const kept = keptAsIs(gallery, "near-duplicates");
  const list = el("ul.plain");
  let groups = new Map(); // id → the group of the item
  let gone = new Set(); // ids of deleted items
  const marked = new Set(); // ids of items to delete
  let signal = null;
  let working = false;

  const copies = el("button", { type: "button", "data-testid": "mark-copies", onclick: markCopies }, t`Mark all but one of each group`);
  const erase = el("button.quiet", { type: "button", "data-testid": "delete-marked" });
  const done = el("span", { role: "status", "data-testid": "deleted" });

  /** Put an item and its near duplicates into one group; groups that share an item become one.
   *
   * @param {Api.ItemWithDuplicates} found */
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
    fit();
  }

  const keyOf = (group) => JSON.stringify([...group.items.keys()].sort());
  const leftOf = (group) => [...group.items.values()].filter(({ id }) => !gone.has(id));
  const hasOneLabel = (items) => new Set(items.map(({ label }) => label)).size === 1;

  /** Let the buttons follow what is marked. */
  function fit() {
    erase.classList.replace("danger", "quiet"); // others are to be confirmed anew
    erase.textContent = t`Delete ${count(marked.size)} marked {0|item|items}`;
    erase.hidden = !may || !marked.size;
    copies.hidden = !may || !list.querySelector(".suspect:not([data-decided])");
    erase.disabled = copies.disabled = working;
  }

  function show(group) {
    if (kept.has(keyOf(group))) {
      group.element?.remove();
      group.element = null;
      return;
    }
    const items = [...group.items.values()];
    const status = el("p.status", { role: "status", "data-testid": "duplicates-done" });
    const keep = el("button", { type: "button", "data-testid": "keep-all" }, t`Keep all`);
    const undo = el("button", { type: "button", hidden: true, "data-testid": "undo-decision" }, t`Undo`);
    const figures = items.map((item) => figure(item, () => warn()));
    const element = el("li.suspect", { "data-testid": "duplicates" },
      el("div", {},
        el("p", {}, t`${count(items.length)} items, similarity ${fixed(group.least, 3)} or more`, ". ",
          hasOneLabel(items) ? "" : el("strong", { "data-testid": "labels-differ" }, t`Their labels differ.`)),
        el("div.side-by-side", {}, figures),
        el("p.actions", {}, keep, undo), status));
    const warn = () => {
      const left = leftOf(group);
      status.textContent = left.length && left.every(({ id }) => marked.has(id)) ? t`All items of this group are marked.` : "";
    };
    if (leftOf(group).length < 2) { // one is left, so nothing is to be decided
      element.dataset.decided = "yes";
      keep.hidden = true;
    }
    keep.onclick = () => {
      kept.add(keyOf(group));
      for (const id of group.items.keys()) marked.delete(id);
      for (const mark of element.querySelectorAll(".mark")) mark.setAttribute("aria-pressed", "false");
      element.dataset.decided = "yes";
      [keep.hidden, undo.hidden] = [true, false];
      status.textContent = t`Kept. This browser does not list it again.`;
      focusAfter(element);
      fit();
    };
    undo.onclick = () => {
      kept.remove(keyOf(group));
      delete element.dataset.decided;
      [keep.hidden, undo.hidden] = [false, true];
      status.textContent = "";
      keep.focus();
      fit();
    };
    if (group.element) group.element.replaceWith(element);
    else list.append(element);
    group.element = element;
    warn();
  }

  /** An item of a group; `changed` is called when it is marked or not.
   *
   * @param {Page.Item} item */
  function figure(item, changed) {
    const isGone = gone.has(item.id);
    const mark = el("button.mark", { type: "button", hidden: !may || isGone, "aria-pressed": String(marked.has(item.id)),
      "data-testid": "mark-duplicate", onclick: () => {
        if (working) return;
        marked[marked.has(item.id) ? "delete" : "add"](item.id);
        mark.setAttribute("aria-pressed", String(marked.has(item.id)));
        changed();
        fit();
      } }, t`Mark for deletion`);
    const element = el("figure", {}, picture(item.preview_url ?? item.thumbnail_url, "", true),
      el("figcaption", {}, el("b", { dir: "auto" }, brief(item.label ?? "")), el("span.id", { dir: "auto", title: item.id }, item.id)), mark);
    element.classList.toggle("gone", isGone);
    return element;
  }

  /** Mark all items but the first of each open group, where they have one label. */
  function markCopies() {
    for (const group of new Set(groups.values())) {
      if (!group.element || group.element.dataset.decided || !hasOneLabel([...group.items.values()])) continue;
      for (const { id } of leftOf(group).slice(1)) marked.add(id);
      show(group);
    }
    fit();
  }

  /** Delete the marked items one after another. What cannot be deleted stays marked. */
  async function eraseMarked() {
    working = true;
    fit();
    const all = [...marked];
    let n = 0;
    let failed = "";
    for (const id of all) {
      done.textContent = t`${count(n)} of ${count(all.length)} deleted`;
      try {
        await patiently(() => deleteItem(gallery, id), signal);
        marked.delete(id);
        gone.add(id);
        n += 1;
        show(groups.get(id));
      } catch (error) {
        if (signal.aborted) return;
        failed = t`“${id}” could not be deleted: ${reasonOf(error)}`;
        if ([401, 403, 409, 429].includes(error.problem?.status)) break; // the others would be refused as well
      }
    }
    working = false;
    done.textContent = [t`${count(n)} of ${count(all.length)} deleted`, failed].filter(Boolean).join(". ");
    fit();
    list.closest(".found")?.focus();
  }
  pressTwice(erase, () => t`Press again: ${count(marked.size)} {0|item is|items are} deleted, and it cannot be taken back`, eraseMarked);

  openCheck(gallery, within, {
    closed,
    name: "near-duplicates", operation: "/v1/galleries/{gallery}/near-duplicates", title: t`Near duplicates`, order: "similarity", list,
    note: [
      t`Items with nearly the same embedding: copies, other sizes, and photos taken one after another.`,
      may ? "" : t`A key that may write is needed to delete items.`,
    ].join(" "),
    option: {
      name: "threshold", words: t`Minimum similarity`, chosen: 0.99,
      choices: [0.9999, 0.999, 0.99, 0.97, 0.95].map((value) => [value, fixed(value, value > 0.999 ? 4 : value > 0.99 ? 3 : 2)]),
    },
    begin: (running) => {
      signal = running;
      [groups, gone] = [new Map(), new Set()];
      marked.clear();
      working = false;
      done.textContent = "";
      fit();
    },
    found: join,
    n: () => list.querySelectorAll(".suspect:not([data-decided])").length,
    tools: [copies, erase, done],
  });
}
