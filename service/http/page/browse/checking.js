// A check of a whole gallery: the service examines it part by part, then the clearest findings come first.

import { askJson, patiently } from "../api.js";
import { dialogHeader, el, openDialog } from "../elements.js";
import { t } from "../language.js";
import { remember, remembered } from "../memory.js";
import { reasonOf } from "../problem.js";
import { count } from "../words.js";

const SHOWN = 50; // cards without a decision at which the check pauses
const KEPT = 5000; // decisions that a browser remembers for a check of a gallery

/** Open a check in a dialog `within` the page.
 *
 * `name` is its room; `operation` its path; `option` has the name of its strictness, `choices` of it, each a
 * value and its words, and the value that is `chosen` first; `order` is what the service sorts by.
 * `found(one)` is called with each finding
 * of a page, and adds cards to `list`. `n()` is the number of cards without a decision. `begin(signal)`
 * is called before the check begins, and again with another strictness. `tools` stand beside that;
 * `closed` is called at the end.
 *
 * @param {Page.Gallery} gallery
 * @param {Element} within
 * @param {{ operation: "/v1/galleries/{gallery}/label-errors" | "/v1/galleries/{gallery}/near-duplicates" } & Record<string, any>} options */
export function openCheck(gallery, within, { name, operation, title, note, option, order, list, found, n, begin, closed, tools = [] }) {
  const status = el("p.status", { role: "status", "data-testid": "check-status" });
  const more = el("button", { type: "button", hidden: true, "data-testid": "check-more" }, t`Show more`);
  const strictness = el("select", { id: "strictness", onchange: () => start() }, option.choices.map(([value, words]) =>
    el("option", { value, selected: value === option.chosen }, words)));
  const dialog = el("dialog.check.whole", { "aria-labelledby": "check-title", "data-testid": name },
    dialogHeader(el("h2", { id: "check-title", dir: "auto" }, title)),
    el("p.note", {}, note),
    el("p.strictness", {}, el("label", { htmlFor: "strictness" }, option.words), strictness, tools), status,
    el("div.found", { tabIndex: 0, role: "group", "aria-label": title }, list, more));
  let running = new AbortController();

  function start() {
    running.abort();
    running = new AbortController();
    list.replaceChildren();
    begin(running.signal);
    examine({ cursor: null, signal: running.signal });
  }

  /** List findings from a place on, until enough are listed; first, the gallery is examined. */
  async function examine({ cursor, signal }) {
    more.hidden = true;
    let examined = 0; // by the worker of the service that is farthest
    try {
      do {
        const query = { order, [option.name]: strictness.value, cursor };
        const page = await patiently(() => askJson(operation, { path: { gallery: gallery.name }, query, signal }), signal);
        if (signal.aborted) return;
        examined = Math.max(examined, page.n_items - page.n_unranked);
        cursor = page.next_cursor;
        for (const one of page.items) found(one);
        status.textContent = page.n_unranked ? t`${count(examined)} of ${count(page.n_items)} items examined`
          : list.children.length ? t`All ${count(page.n_items)} items examined. The clearest cases come first.`
            : cursor === null ? t`All ${count(page.n_items)} items examined: nothing found.` : t`All ${count(page.n_items)} items examined.`;
      } while (cursor !== null && n() < SHOWN);
    } catch (error) {
      if (signal.aborted) return;
      status.textContent = reasonOf(error);
    }
    more.hidden = cursor === null;
    more.onclick = () => examine({ cursor, signal });
  }

  openDialog(dialog, within, () => {
    running.abort();
    closed();
  });
  start();
}

/** What a visitor has decided to keep as it is, by keys; this browser remembers it. */
export function keptAsIs(gallery, name) {
  const place = `vouch-kept/${gallery.name}/${name}`;
  let keys = [];
  try {
    keys = JSON.parse(remembered(place) ?? "[]");
  } catch {
    // it was written by another release
  }
  const kept = new Set(keys);
  const write = () => remember(place, JSON.stringify([...kept].slice(-KEPT)));
  return {
    has: (key) => kept.has(key),
    add: (key) => { kept.add(key); write(); },
    remove: (key) => { kept.delete(key); write(); },
  };
}

/** Move the focus to what is to be decided next after `card`. */
export const focusAfter = (card) => {
  let next = card.nextElementSibling;
  while (next && next.dataset.decided) next = next.nextElementSibling;
  (next?.querySelector("button:not([hidden])") ?? card.closest(".found")).focus();
};
