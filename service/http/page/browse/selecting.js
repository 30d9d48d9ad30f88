// Many items of a gallery at once: marked in the grid, exported as a table, or deleted.

import { deleteItem, mayWrite } from "../api.js";
import { el, pressTwice, save } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { csvFile } from "../spreadsheet.js";
import { count } from "../words.js";

/** @type {Record<string, (item: Page.Item) => string>} */
const COLUMNS = {
  id: ({ id }) => id,
  label: ({ label }) => label,
  metadata: ({ metadata }) => JSON.stringify(metadata ?? {}),
};

/** The marked items of a gallery, and what can be done with them.
 *
 * `grid` has `redraw()`, and `between(a, b)`, the items from one to another in the list that is shown.
 * `gone` has the ids of deleted items. `changed()` is called when other items are marked.
 *
 * @param {Page.Gallery} gallery */
export function selection(gallery, grid, gone, changed) {
  const marked = new Map(); // by id
  const done = el("p.status", { role: "status", "data-testid": "selection-done" });
  const erase = el("button.quiet", { type: "button", hidden: true, "data-testid": "delete-selected" });
  const element = el("div.selection", { hidden: true, "data-testid": "selection" });
  const changeable = mayWrite();
  let isOn = false;
  let last = null; // the item that was marked last
  let working = false;

  const n = el("p", { "data-testid": "n-selected" });
  const exporting = el("button", {
    type: "button", "data-testid": "export-selected",
    onclick: () => save(csvFile(COLUMNS, [...marked.values()]), `${gallery.name}.csv`),
  }, t`Export as CSV`);
  const clear = el("button", {
    type: "button", "data-testid": "clear-selected", onclick: () => unmark(),
  }, t`Clear the selection`);
  const labels = el("div"); // the form of their label
  element.append(n, labels, exporting, clear, erase, done);
  changeable.then((may) => { erase.hidden = !may; });
  pressTwice(erase, t`Press again: it cannot be taken back`, eraseAll);

  function show() {
    element.hidden = !isOn;
    if (!marked.size) labels.replaceChildren();
    n.textContent = t`${count(marked.size)} selected`;
    erase.classList.replace("danger", "quiet"); // another selection is to be confirmed anew
    erase.textContent = t`Delete ${count(marked.size)} {0|item|items}`;
    for (const button of [exporting, clear, erase]) button.disabled = working || !marked.size;
    changed();
  }

  function unmark() {
    marked.clear();
    last = null;
    done.textContent = "";
    grid.redraw();
    show();
  }

  /** Mark an item or not; with `through`, all from the one that was marked last. */
  function mark(item, through) {
    if (working) return;
    const some = (through && last ? grid.between(last, item) : [item]).filter(({ id }) => !gone.has(id));
    const on = through || !marked.has(item.id);
    for (const one of some) {
      if (on) marked.set(one.id, one);
      else marked.delete(one.id);
    }
    last = item;
    done.textContent = "";
    grid.redraw();
    show();
  }

  /** Mark some items, in addition to those that are. */
  function add(items) {
    if (working) return;
    for (const one of items) if (!gone.has(one.id)) marked.set(one.id, one);
    done.textContent = "";
    grid.redraw();
    show();
  }

  /** Delete the marked items one by one. What cannot be deleted stays marked. */
  async function eraseAll() {
    working = true;
    const all = [...marked.values()];
    const reasons = new Map();
    show();
    for (const [place, item] of all.entries()) {
      done.textContent = t`${count(place)} of ${count(all.length)} deleted`;
      try {
        await deleteItem(gallery, item.id);
        marked.delete(item.id);
        gone.add(item.id);
      } catch (error) {
        reasons.set(item.id, reasonOf(error));
      }
    }
    working = false;
    grid.redraw();
    show();
    const [[id, reason] = []] = reasons;
    done.textContent = [
      t`${count(all.length - reasons.size)} of ${count(all.length)} deleted`,
      reasons.size ? t`“${id}” could not be deleted: ${reason}` : "",
    ].filter(Boolean).join(". ");
  }

  const toggle = el("button", { type: "button", "aria-pressed": "false", "data-testid": "select" }, t`Select`);
  toggle.onclick = () => {
    isOn = !isOn;
    toggle.setAttribute("aria-pressed", String(isOn));
    unmark();
  };
  return {
    element, labels, toggle, mark, add, has: (item) => marked.has(item.id),
    get isOn() { return isOn; }, get items() { return [...marked.values()]; },
  };
}
