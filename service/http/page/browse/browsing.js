// Looking through a gallery, or through the items like one of them, however many there are.

import { arrived, askJson, deleteItem, mayWrite } from "../api.js";
import { dialogHeader, el, openDialog, picture, pressTwice } from "../elements.js";
import { t } from "../language.js";
import { filterBar } from "../filters/bar.js";
import { facts, recordUrl } from "../look/facts.js";
import { passes, reasonOf } from "../problem.js";
import { brief, count } from "../words.js";
import { labelEditor } from "./labels.js";
import { selection } from "./selecting.js";

const CELL = { width: 124, height: 164 }; // pixels
const BEYOND = 3; // rows that are drawn above and below what is seen
const AHEAD = 200; // items that are fetched before they are scrolled to
const AGAIN = 2; // s before a request to a busy service is repeated, unless it says when

/** Open the gallery's items, by id or on a map, in a dialog `within` the page. `went(room)` is called
 * when the other of these is shown, `go(room)` to open a check of the gallery, `closed` at the end.
 *
 * @param {Page.Gallery} gallery
 * @param {Element} within
 * @param {{ room?: string, went?: (room: string) => void, go?: (room: string) => void, closed?: () => void }} [options] */
export function browse(gallery, within, { room = "items", went = () => {}, go = null, closed = () => {} } = {}) {
  const status = el("span", { "data-testid": "browse-status" });
  const done = el("span", { "data-testid": "browse-done" }); // of a deletion: more items leave it there
  const about = el("div.about", { "data-testid": "browse-about" });
  const all = el("button", { type: "button", hidden: true, onclick: () => openAll() }, t`All items`);
  const changeable = mayWrite();
  const gone = new Set(); // the ids of items that were deleted here
  let filter = null;
  const filters = filterBar(gallery.name, (wanted) => {
    filter = wanted;
    if (map) map.show(filter);
    else openAll();
  });
  const grid = windowed((item, place) => el("button.cell", {
    type: "button", title: item.id, "data-place": place, disabled: gone.has(item.id),
    ...(selected.isOn && { "aria-pressed": String(selected.has(item)) }),
    onclick: ({ currentTarget, shiftKey }) => (
      selected.isOn ? selected.mark(item, shiftKey) : choose(item, currentTarget)),
  }, picture(item.thumbnail_url, "", true), el("span", { dir: "auto" }, brief(item.label ?? item.id))));
  const labels = labelEditor(gallery, () => {
    grid.redraw();
    if (looked) looked.facts.replaceWith(looked.facts = facts(looked.item, true));
  });
  /** @type {{ item: Page.Item, facts: HTMLElement }} */
  let looked = null; // the item that is looked at, and what is shown of it
  const selected = selection(gallery, grid, gone, () => {
    about.replaceChildren(...(selected.isOn ? [selected.element] : []));
    map?.redraw();
    if (!selected.isOn) return;
    looked = null;
    labels.use(selected.items, true);
    changeable.then((may) => { if (may && selected.items.length) selected.labels.replaceChildren(labels.element); });
  });
  let map = null; // while it is shown
  const toMap = el("button", {
    type: "button", "aria-pressed": "false", "data-testid": "to-map", onclick: () => (map ? openAll() : openMap()),
  }, t`Map`);
  const toCheck = (name, words) => go && el("button", {
    type: "button", "data-testid": `to-${name}`, onclick: () => go(name),
  }, words);
  const dialog = el("dialog.browse.whole", { "aria-labelledby": "browse-title", "data-testid": "browse" },
    dialogHeader(el("h2", { id: "browse-title", dir: "auto" }, t`Browse ${gallery.name}`), all, toMap,
      toCheck("label-errors", t`Possible label errors`), toCheck("near-duplicates", t`Near duplicates`), selected.toggle),
    filters, el("p.status", { role: "status" }, status, " ", done), grid.element, about);

  const failed = (error) => { status.textContent = reasonOf(error); };

  /** Show the items on a map, or in the grid. */
  function arrange(shown) {
    const before = map?.element ?? grid.element;
    if (shown === map) return;
    map?.end();
    map = shown;
    toMap.setAttribute("aria-pressed", String(map !== null));
    before.replaceWith(map?.element ?? grid.element);
    dialog.dataset.room = map ? "map" : "items";
    went(dialog.dataset.room);
  }

  async function openMap() {
    const { itemMap } = await arrived(import("./map.js")).catch((error) => {
      failed(error);
      return { itemMap: null };
    });
    if (!itemMap || map || !dialog.isConnected) return;
    all.hidden = true;
    done.replaceChildren();
    status.textContent = t`Drawing the map`;
    arrange(itemMap(gallery, {
      choose: (item) => choose(item, {}), selected, gone, failed,
      told: (text) => { status.textContent = text; },
    }));
    map.redraw();
    map.show(filter);
  }

  function openAll() {
    arrange(null);
    all.hidden = true;
    if (!selected.isOn) about.replaceChildren();
    done.replaceChildren();
    let cursor = null;
    const wanted = filter;
    grid.show(async () => {
      const page = await askJson("/v1/galleries/{gallery}/items", {
        path: { gallery: gallery.name }, query: { limit: 100, filter: wanted, cursor },
      });
      cursor = page.next_cursor;
      return { items: page.items, total: page.n_passing ?? page.n_items, ended: cursor === null };
    }, (n, total) => { status.textContent = t`${count(n)} of ${count(total)} {1|item|items}, by id`; }, failed);
  }

  /** @param {Page.Item} item */
  function openSimilar(item) {
    arrange(null);
    all.hidden = false;
    done.replaceChildren();
    grid.show(async () => {
      const { results } = await askJson("/v1/galleries/{gallery}/items/{item_id}/similar", {
        path: { gallery: gallery.name, item_id: item.id }, query: { limit: 100, filter },
      });
      return { items: results, total: results.length, ended: true };
    }, (n) => {
      status.textContent = t`${n} {0|item|items} like “${brief(item.label ?? item.id)}”, without probabilities.`;
    }, failed);
  }

  /** @param {Page.Item} item
   * @param {Partial<HTMLButtonElement>} cell */
  function choose(item, cell) {
    const record = recordUrl(gallery.record_url, item);
    looked = { item, facts: facts(item, true) };
    labels.use([item]);
    changeable.then((may) => { if (may && looked?.item === item) looked.facts.after(labels.element); });
    about.replaceChildren(looked.facts,
      el("button", { type: "button", onclick: () => openSimilar(item) }, t`Items like this one`),
      record ? el("a", { href: record, target: "_blank", rel: "noreferrer" }, t`Open the record`) : "",
      deleting(item, cell));
  }

  /** A button that takes an item out of the gallery when it is pressed twice, if the key may.
   *
   * @param {Page.Item} item */
  function deleting(item, cell) {
    const button = el("button.quiet", { type: "button", hidden: true, "data-testid": "delete" }, t`Delete it`);
    changeable.then((may) => { button.hidden = !may; });
    pressTwice(button, t`Press again: it cannot be taken back`, async () => {
      button.disabled = true;
      try {
        await deleteItem(gallery, item.id);
        done.textContent = t`“${brief(item.id)}” is no longer in the gallery.`;
        gone.add(item.id);
        cell.disabled = true;
        if (!about.contains(button)) return; // another item is looked at by now
        about.replaceChildren();
        grid.element.focus();
      } catch (error) {
        done.textContent = reasonOf(error);
        button.remove(); // a second press would be refused as well
      }
    });
    return button;
  }

  openDialog(dialog, within, () => {
    grid.end();
    map?.end();
    labels.end();
    closed();
  });
  if (room === "map") openMap();
  else openAll();
}

/** A grid that holds only the cells that are seen. `show(fetchMore, told, failed)` fills it page by
 * page: what `fetchMore` answers is { items, total, ended }.
 *
 * @param {(item: Page.Item, place: number) => HTMLElement} cellOf */
function windowed(cellOf) {
  const space = el("div.space");
  const element = el("div.window", { tabIndex: 0, role: "group", "aria-label": t`Items` }, space);
  let source = null;
  let waiting = false;

  const columns = () => Math.max(1, Math.floor(element.clientWidth / CELL.width));
  let before = 0; // columns that were drawn last

  function draw() {
    waiting = false;
    if (!source) return;
    const { items, cells } = source;
    const across = columns();
    if (before && across !== before) { // what stood at the top stays there
      const top = Math.floor(element.scrollTop / CELL.height) * before;
      space.style.height = `${Math.ceil(source.items.length / across) * CELL.height}px`;
      element.scrollTop = Math.floor(top / across) * CELL.height;
    }
    before = across;
    const seen = [element.scrollTop, element.scrollTop + element.clientHeight];
    const [first, last] = seen.map((y) => Math.floor(y / CELL.height));
    const begin = Math.max(0, first - BEYOND) * across;
    const end = Math.min(items.length, (last + 1 + BEYOND) * across);
    space.style.height = `${Math.ceil(items.length / across) * CELL.height}px`;
    for (const [place, cell] of cells) {
      const kept = place >= begin && place < end;
      if (kept || cell.matches(":focus")) continue; // the focus stays where it is
      cell.remove();
      cells.delete(place);
    }
    for (let place = begin; place < end; place += 1) {
      const cell = cells.get(place) ?? cellOf(items[place], place);
      const [row, column] = [Math.floor(place / across), place % across];
      cell.style.insetBlockStart = `${row * CELL.height}px`;
      cell.style.insetInlineStart = `calc(${100 * (column + 0.5) / across}% - ${CELL.width / 2 - 4}px)`;
      if (!cells.has(place)) {
        cells.set(place, cell);
        space.append(cell);
      }
    }
    if (end + AHEAD > items.length) fetchMore();
  }

  function ask() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(draw);
  }

  async function fetchMore() {
    const now = source;
    if (now.ended || now.fetching) return;
    now.fetching = true;
    try {
      const { items, total, ended } = await now.fetch();
      if (now !== source) return;
      now.items.push(...items);
      Object.assign(now, { ended, fetching: false });
      now.told(now.items.length, total);
      ask();
    } catch (error) {
      if (now !== source) return;
      now.ended = !passes(error.problem?.status);
      now.failed(error);
      setTimeout(() => { // until then scrolling requests nothing
        now.fetching = false;
        ask();
      }, 1000 * (Number(error.retryAfter) || AGAIN));
    }
  }

  function show(fetch, told, failed) {
    source = { items: [], cells: new Map(), ended: false, fetching: false, fetch, told, failed };
    space.replaceChildren();
    element.scrollTop = 0;
    fetchMore();
  }

  element.addEventListener("scroll", ask, { passive: true });
  const sized = new ResizeObserver(ask);
  sized.observe(element);
  const end = () => {
    source = null;
    sized.disconnect();
  };

  /** Make the cells anew: what they show has changed. The focus stays at its place. */
  function redraw() {
    if (!source) return;
    const focused = space.querySelector(":focus")?.dataset.place;
    for (const cell of source.cells.values()) cell.remove();
    source.cells.clear();
    draw();
    if (focused) source.cells.get(Number(focused))?.focus({ preventScroll: true });
  }

  /** The items from one to another; `b` alone where another list is shown by now than that of `a`. */
  function between(a, b) {
    const [begin, end] = [a, b].map(({ id }) => source.items.findIndex((one) => one.id === id));
    return begin < 0 ? [b] : source.items.slice(Math.min(begin, end), Math.max(begin, end) + 1);
  }

  return { element, show, end, redraw, between };
}
