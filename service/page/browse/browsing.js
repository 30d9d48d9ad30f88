// Looking through a gallery, or through the items like one of them, however many there are.

import { askJson } from "../api.js";
import { el, picture } from "../elements.js";
import { t } from "../language.js";
import { facts, recordUrl } from "../look/facts.js";
import { brief, count } from "../words.js";

const CELL = { width: 124, height: 164 }; // pixels
const BEYOND = 3; // rows that are drawn above and below what is seen
const AHEAD = 200; // items that are fetched before they are scrolled to

/** Open the gallery's items, by id. */
export function browse(gallery) {
  const base = `/v1/galleries/${encodeURIComponent(gallery.name)}/items`;
  const status = el("p.status", { role: "status", "data-testid": "browse-status" });
  const about = el("div.about", { "data-testid": "browse-about" });
  const all = el("button", { type: "button", hidden: true, onclick: () => openAll() }, t`All items`);
  const grid = windowed((item, place) => el("button.cell", {
    type: "button", title: item.id, "data-place": place, onclick: () => choose(item),
  }, picture(item.thumbnail_url, "", true), el("span", { dir: "auto" }, brief(item.label ?? item.id))));
  const dialog = el("dialog.browse", { "aria-labelledby": "browse-title", "data-testid": "browse" },
    el("header", {}, el("h2", { id: "browse-title", dir: "auto" }, gallery.name), all,
      el("button.close", {
        type: "button", onclick: () => dialog.close(), "aria-label": t`Close`,
      }, "×")),
    status, grid.element, about);

  const failed = (error) => { status.textContent = error.problem?.detail ?? String(error); };

  function openAll() {
    all.hidden = true;
    about.replaceChildren();
    let cursor = null;
    grid.show(async () => {
      const query = new URLSearchParams({ limit: 100, ...(cursor !== null && { cursor }) });
      const page = await askJson(`${base}?${query}`);
      cursor = page.next_cursor;
      return { items: page.items, total: page.n_items, ended: cursor === null };
    }, (n, total) => { status.textContent = t`${count(n)} of ${count(total)} items, by id`; }, failed);
  }

  function openSimilar(item) {
    all.hidden = false;
    const path = item.id.split("/").map(encodeURIComponent).join("/");
    grid.show(async () => {
      const { results } = await askJson(`${base}/${path}/similar?limit=100`);
      return { items: results, total: results.length, ended: true };
    }, (n) => {
      status.textContent = t`${n} items like “${brief(item.label ?? item.id)}”, without probabilities.`;
    }, failed);
  }

  function choose(item) {
    const record = recordUrl(gallery.record_url, item);
    about.replaceChildren(facts(item, true),
      el("button", { type: "button", onclick: () => openSimilar(item) }, t`Items like this one`),
      record ? el("a", { href: record, target: "_blank", rel: "noreferrer" }, t`Open the record`) : "");
  }

  dialog.addEventListener("close", () => {
    grid.end();
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
  openAll();
}

/** A grid that holds only the cells that are seen. `show(fetchMore, told, failed)` fills it page by
 * page: what `fetchMore` answers is { items, total, ended }. */
function windowed(cellOf) {
  const space = el("div.space");
  const element = el("div.window", { tabIndex: 0, role: "group", "aria-label": t`Items` }, space);
  let source = null;
  let waiting = false;

  const columns = () => Math.max(1, Math.floor(element.clientWidth / CELL.width));

  function draw() {
    waiting = false;
    if (!source) return;
    const { items, cells } = source;
    const across = columns();
    const seen = [element.scrollTop, element.scrollTop + element.clientHeight];
    const [first, last] = seen.map((y) => Math.floor(y / CELL.height));
    const begin = Math.max(0, first - BEYOND) * across;
    const end = Math.min(items.length, (last + 1 + BEYOND) * across);
    space.style.height = `${Math.ceil(items.length / across) * CELL.height}px`;
    for (const [place, cell] of cells) {
      const kept = place >= begin && place < end;
      if (kept || cell === document.activeElement) continue; // whoever is there is not pulled away
      cell.remove();
      cells.delete(place);
    }
    for (let place = begin; place < end; place += 1) {
      const cell = cells.get(place) ?? cellOf(items[place], place);
      const [row, column] = [Math.floor(place / across), place % across];
      cell.style.insetBlockStart = `${row * CELL.height}px`;
      cell.style.insetInlineStart = `${column * CELL.width}px`;
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
      now.ended = true;
      if (now === source) now.failed(error);
    }
  }

  function show(fetch, told, failed) {
    source = { items: [], cells: new Map(), ended: false, fetching: false, fetch, told, failed };
    space.replaceChildren();
    element.scrollTop = 0;
    fetchMore();
  }

  element.addEventListener("scroll", ask, { passive: true });
  addEventListener("resize", ask);
  const end = () => {
    source = null;
    removeEventListener("resize", ask);
  };
  return { element, show, end };
}
