// The items of a gallery as points of a plane: zoomed and moved by mouse, touch and keyboard.
// Points are drawn pixel by pixel, for 100,000 of them must follow a finger.

import { askJson } from "../api.js";
import { el, picture } from "../elements.js";
import { t } from "../language.js";
import { brief, count, fixed, percent } from "../words.js";

const COLOURS = ["#1f77b4", "#d55e00", "#0a8f6c", "#c2589b", "#b98300", "#4aa8d8", "#8f5fd7", "#7a6a2f"];
const RANGES = ["#4263eb", "#1c8cc4", "#12946f", "#6f9c1a", "#c58a0c", "#d9480f"];
const REST = "#8d9993"; // of items without a colour
const NONE = 255; // the code of these
const LAST = 65535; // the largest coordinate
const MARGIN = 26; // pixels around the items
const MOST = 60; // times as large
const STEP = 1.4; // of one press of a key or button
const NEAR = 14; // pixels from a point to the pointer
const CLICK = 5; // pixels that a click may move
const REACH = 60; // pixels of one press of an arrow
const PINS = 40; // pictures that are shown where so few items are in view
const REST_MS = 200; // after which pictures are fetched for a view
const PASSING_MS = 60; // that a pointer is over a point before its picture is fetched
const AT_ONCE = 200; // items of one request
const MARKED = 2000; // items that are selected at once

const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer;
const rgba = (hex) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
};

/** The map of a gallery. `show(filter)` fetches and draws it.
 *
 * `choose(item)` opens an item; `selected` has `isOn`, `has(item)`, `mark(item)` and `add(items)`;
 * `gone` has the ids of deleted items; `told(text)` reports what is shown; `failed(error)` why nothing is.
 *
 * @param {Page.Gallery} gallery */
export function itemMap(gallery, { choose, selected, gone, told, failed }) {
  const path = { gallery: gallery.name };
  const view = { zoom: 1, x: 0.5, y: 0.5 }; // x, y: the middle, in sizes of the map
  /** @type {Page.ItemMap} */
  let map = null; // what the service answered, with arrays
  let wanted = null; // the filter
  let lit = null; // the code of the colour that alone is shown; null for all
  let asked = null; // the last request of a map
  let at = -1; // the point that is hovered or focused
  /** @type {Map<number, Api.MapItem>} */
  let known = new Map(); // point → its item, or null if it is gone
  let resting = null;

  const canvas = el("canvas", {
    tabIndex: 0, role: "application", "aria-label": t`Map of the items`, "aria-describedby": "map-keys",
    "data-testid": "map-canvas",
  });
  const pins = el("div.pins", {});
  const box = el("div.map-box", { hidden: true });
  const card = el("div.map-card", { hidden: true, role: "status", "data-testid": "map-card" });
  const sheet = el("div.sheet", {}, canvas, pins, box, card);
  const legend = el("div.colours", { role: "group", "aria-label": t`Colours`, "data-testid": "map-colours" });
  const by = el("select", { id: "map-by", "data-testid": "map-by", onchange: () => fetchMap() },
    el("option", { value: "label" }, t`Label`));
  const tool = (name, words, act) =>
    el("button", { type: "button", "aria-label": words, title: words, onclick: act }, name);
  const choosing = el("button", {
    type: "button", hidden: true, "data-testid": "select-view",
    onclick: () => markWithin(0, 0, sheet.clientWidth, sheet.clientHeight),
  }, t`Select the items in view`);
  const note = el("p.note", { id: "map-keys", "data-testid": "map-note" });
  const element = el("div.map", { "data-testid": "map" },
    el("div.map-tools", {}, el("label", { htmlFor: "map-by" }, t`Colours by`), by,
      tool("+", t`Zoom in`, () => zoom(STEP)), tool("−", t`Zoom out`, () => zoom(1 / STEP)),
      tool("⤢", t`Whole map`, reset), choosing),
    sheet, legend, note);

  // What is shown.

  async function fetchMap() {
    const mine = (asked = {});
    try {
      const found = await askJson("/v1/galleries/{gallery}/map", { path, query: { colour_by: by.value, filter: wanted } });
      if (asked !== mine) return; // another one is wanted by now
      const rows = new Uint32Array(bytes(found.rows));
      const codes = new Uint8Array(bytes(found.codes));
      if (map?.bundle_id !== found.bundle_id || map.rowsAsText !== found.rows) {
        known = new Map();
        pins.replaceChildren();
      }
      map = {
        ...found, rows, codes, rowsAsText: found.rows, hidden: new Uint8Array(rows.length),
        x: new Uint16Array(bytes(found.x)), y: new Uint16Array(bytes(found.y)),
      };
      map.extent = extentOf(map);
      [at, lit, card.hidden] = [-1, null, true];
      showLegend();
      showCounts();
      showNote();
      changed();
    } catch (error) {
      if (asked === mine) failed(error);
    }
  }

  const showCounts = () => told(map.n_shown < map.n_passing
    ? t`A sample of ${count(map.n_shown)} of ${count(map.n_passing)} items`
    : t`${count(map.n_shown)} {0|item|items} on the map`);

  function showNote() {
    const part = map.variance_shares.reduce((sum, one) => sum + one, 0);
    note.textContent = [
      t`Similar items are close together. Distances are approximate: the map shows ${percent(part)} of the differences between items.`,
      selected.isOn
        ? t`Drag to select the items in a rectangle. Move with two fingers or the arrow keys.`
        : t`Drag to move; scroll, pinch or press + and − to zoom. Arrow keys move, Enter opens the item in the middle, 0 shows the whole map.`,
    ].join(" ");
  }

  /** What the items have to do with colours: fields with few values, or with numbers. */
  async function fetchFields() {
    const { facets } = await askJson("/v1/galleries/{gallery}/facets", { path, query: { limit: 2 } }).catch(() => ({ facets: [] }));
    by.append(...facets
      .filter(({ field, values, least, greatest }) =>
        field !== "label" && (values.length > 1 || (least !== null && least < greatest)))
      .map(({ field }) => el("option", { value: field }, field)));
  }

  const palette = () => (map.colours.some(({ value }) => value === null) ? RANGES : COLOURS);

  function showLegend() {
    const rest = map.n_shown - map.colours.reduce((sum, { n_items: n }) => sum + n, 0);
    const one = (code, colour, words, n) => {
      const dot = el("i", {});
      dot.style.background = colour;
      return el("button", {
        type: "button", "aria-pressed": String(lit === code), "data-code": code,
        onclick: () => {
          lit = lit === code ? null : code;
          for (const button of legend.children) {
            button.setAttribute("aria-pressed", String(Number(button.dataset.code) === lit));
          }
          changed();
        },
      }, dot, el("span", { dir: "auto" }, words), el("small", {}, count(n)));
    };
    const numbers = (value) => fixed(value, Number.isInteger(value) ? 0 : 2);
    legend.hidden = !map.colours.length;
    legend.replaceChildren(
      ...map.colours.map(({ value, least, greatest, n_items: n }, code) => one(code, palette()[code],
        value === null ? t`${numbers(least)} to ${numbers(greatest)}` : brief(String(value)), n)),
      ...(rest ? [one(NONE, REST, t`Others`, rest)] : []));
  }

  // Drawing.

  let image = null;
  let pixels = null;
  let drawing = false;

  /** Where the map lies on the sheet, in pixels: coordinate c, of 0 to 1, is at left + c · size across,
   * and at bottom − c · size down. */
  function frame() {
    const { clientWidth: width, clientHeight: height } = sheet;
    const { x, y } = map.extent;
    const size = view.zoom * Math.min((width - 2 * MARGIN) / x.size, (height - 2 * MARGIN) / y.size);
    return {
      size, left: width / 2 - (x.begin + view.x * x.size) * size,
      bottom: height / 2 + (y.begin + view.y * y.size) * size,
    };
  }

  /** Where a point is seen, in pixels of the sheet. */
  function place(i, { size, left, bottom } = frame()) {
    return [left + (map.x[i] / LAST) * size, bottom - (map.y[i] / LAST) * size];
  }

  const isShown = (i) => !map.hidden[i] && (lit === null || map.codes[i] === lit);

  function draw() {
    drawing = false;
    if (!map || !sheet.clientWidth || !sheet.clientHeight) return;
    const ratio = Math.min(devicePixelRatio, 2);
    const [width, height] = [sheet.clientWidth, sheet.clientHeight].map((side) => Math.round(side * ratio));
    const context = canvas.getContext("2d");
    if (canvas.width !== width || canvas.height !== height || !image) {
      [canvas.width, canvas.height] = [width, height];
      image = context.createImageData(width, height);
      pixels = new Uint32Array(image.data.buffer);
    }
    pixels.fill(0);
    const n = map.n_shown;
    const fewer = n < 2000 ? 3.4 : n < 20000 ? 2.2 : 1.3;
    const radius = Math.min(5.5, fewer + Math.log2(view.zoom) * 0.6) * ratio;
    const stamp = discOf(radius, width);
    const colours = Uint32Array.from({ length: 256 }, (_, code) => rgba(palette()[code] ?? REST));
    const seen = frame();
    const [size, left, bottom] = [seen.size, seen.left, seen.bottom].map((one) => one * ratio);
    const edge = Math.ceil(radius);
    const { x, y, codes, hidden } = map;
    const pass = (front) => {
      const stride = strideOf(n); // neighbours in the list are often of one label: mixed, none covers all others
      for (let k = 0, i = 0; k < n; k += 1, i = (i + stride) % n) {
        if (hidden[i] || (lit === null ? codes[i] !== NONE : codes[i] === lit) !== front) continue;
        const across = left + (x[i] / LAST) * size | 0;
        const down = bottom - (y[i] / LAST) * size | 0;
        if (across < edge || down < edge || across >= width - edge || down >= height - edge) continue;
        const colour = lit === null || front ? colours[codes[i]] : FAINT;
        for (const offset of stamp) pixels[down * width + across + offset] = colour;
      }
    };
    pass(false);
    pass(true);
    context.putImageData(image, 0, 0);
    const ink = getComputedStyle(element).color;
    context.strokeStyle = ink;
    context.lineWidth = 2 * ratio;
    const ring = (i, more) => {
      const [across, down] = place(i, seen);
      context.beginPath();
      context.arc(across * ratio, down * ratio, radius + more * ratio, 0, 2 * Math.PI);
      context.stroke();
    };
    for (const [i, item] of known) if (item && selected.has(item)) ring(i, 2);
    if (canvas.matches(":focus-visible")) {
      const [across, down] = [width / 2, height / 2];
      const arm = 9 * ratio;
      context.beginPath();
      context.moveTo(across - arm, down);
      context.lineTo(across + arm, down);
      context.moveTo(across, down - arm);
      context.lineTo(across, down + arm);
      context.stroke();
    }
    if (at >= 0) ring(at, 4);
    for (const pin of pins.children) {
      const i = Number(pin.dataset.point);
      moveTo(pin, ...place(i, seen));
      if (selected.isOn) pin.setAttribute("aria-pressed", String(selected.has(known.get(i))));
      else pin.removeAttribute("aria-pressed");
    }
    placeCard();
    canvas.dataset.zoom = view.zoom.toFixed(2);
  }

  function changed() {
    if (!drawing) {
      drawing = true;
      requestAnimationFrame(draw);
    }
    clearTimeout(resting);
    resting = setTimeout(rest, REST_MS);
  }

  /** What is seen once the view rests: where few items are in view, their pictures. */
  async function rest() {
    if (!map) return;
    const seen = within(0, 0, sheet.clientWidth, sheet.clientHeight);
    const now = map;
    clearTimeout(resting);
    if (seen.length > PINS) return pins.replaceChildren();
    await lookUp(seen).catch(failed);
    if (now !== map) return;
    const before = new Map([...pins.children].map((pin) => [Number(pin.dataset.point), pin]));
    const focused = pins.contains(document.activeElement);
    pins.replaceChildren(...seen.filter((i) => known.get(i)).map((i) => before.get(i) ?? pinOf(i)));
    if (focused && !pins.contains(document.activeElement)) canvas.focus();
    if (!drawing) draw();
  }

  function pinOf(i) {
    const item = known.get(i);
    return el("button.pin", {
      type: "button", "data-point": i, title: item.label ?? item.id, onclick: () => open(i),
      onfocus: () => show(i), onmouseenter: () => show(i),
    }, picture(item.thumbnail_url, item.label ?? item.id));
  }

  // Items.

  /** Fetch the items of some points that are not known yet. */
  async function lookUp(points) {
    const now = map;
    const missing = points.filter((i) => !known.has(i));
    for (let start = 0; start < missing.length; start += AT_ONCE) {
      const some = missing.slice(start, start + AT_ONCE);
      const { items } = await askJson("/v1/galleries/{gallery}/map/items", {
        path, query: { bundle_id: now.bundle_id, rows: some.map((i) => now.rows[i]).join(",") },
      }).catch((error) => {
        if (error.problem?.status === 409 && now === map) fetchMap(); // another bundle is served by now
        throw error;
      });
      if (now !== map) return;
      const found = new Map(items.map((item) => [item.row, item]));
      for (const i of some) {
        known.set(i, found.get(now.rows[i]) ?? null);
        now.hidden[i] = Number(!known.get(i)); // it was deleted since
      }
    }
  }

  async function itemOf(i) {
    await lookUp([i]);
    const item = known.get(i);
    if (!item || gone.has(item.id)) {
      if (map) map.hidden[i] = 1;
      changed();
      return null;
    }
    return item;
  }

  async function open(i) {
    const item = await itemOf(i).catch(failed);
    if (!item) return;
    if (selected.isOn) selected.mark(item);
    else choose(item);
  }

  /** Show a point's picture and label; -1 for none. */
  async function show(i) {
    if (i === at) return;
    at = i;
    card.hidden = true;
    if (!drawing) draw();
    if (i < 0) return;
    if (!known.has(i)) await new Promise((done) => setTimeout(done, PASSING_MS));
    if (i !== at) return; // the pointer only passed it
    const item = await itemOf(i).catch(() => null);
    if (i !== at || !item) return;
    card.replaceChildren(picture(item.thumbnail_url, ""), el("span", { dir: "auto" }, brief(item.label ?? item.id)));
    card.hidden = false;
    placeCard();
  }

  function placeCard() {
    if (at < 0 || card.hidden) return;
    const [across, down] = place(at);
    const right = across > sheet.clientWidth / 2;
    const low = down > sheet.clientHeight / 2;
    moveTo(card, across + (right ? -12 - card.offsetWidth : 12), down + (low ? -12 - card.offsetHeight : 12));
  }

  /** The point nearest to a place of the sheet, and no farther than `most` pixels. */
  function nearest(across, down, most) {
    if (!map) return -1;
    const { size, left, bottom } = frame();
    const [x, y] = [(across - left) / size, (bottom - down) / size];
    let [best, least] = [-1, (most / size) ** 2];
    for (let i = 0; i < map.n_shown; i += 1) {
      const apart = (map.x[i] / LAST - x) ** 2 + (map.y[i] / LAST - y) ** 2;
      if (apart < least && isShown(i)) [best, least] = [i, apart];
    }
    return best;
  }

  /** The points in a rectangle of the sheet. */
  function within(left, top, right, bottom) {
    const found = [];
    const seen = frame();
    for (let i = 0; i < map.n_shown; i += 1) {
      if (!isShown(i)) continue;
      const [across, down] = place(i, seen);
      if (across >= left && across <= right && down >= top && down <= bottom) found.push(i);
    }
    return found;
  }

  async function markWithin(left, top, right, bottom) {
    const points = within(left, top, right, bottom);
    if (points.length > MARKED) {
      told(t`${count(points.length)} items are there; at most ${count(MARKED)} can be selected at once. Zoom in, or choose a colour.`);
      return;
    }
    told(t`Selecting ${count(points.length)} items`);
    try {
      await lookUp(points);
    } catch (error) {
      failed(error);
      return;
    }
    selected.add(points.map((i) => known.get(i)).filter((item) => item && !gone.has(item.id)));
    showCounts();
  }

  // Zooming and moving.

  /** `factor` times as large, about a place of the sheet. */
  function zoom(factor, across = sheet.clientWidth / 2, down = sheet.clientHeight / 2) {
    if (!map) return;
    const before = frame().size;
    view.zoom = Math.min(MOST, Math.max(1, view.zoom * factor));
    const after = frame().size;
    const apart = 1 / before - 1 / after;
    view.x += (across - sheet.clientWidth / 2) * apart / map.extent.x.size;
    view.y -= (down - sheet.clientHeight / 2) * apart / map.extent.y.size;
    moved();
  }

  function move(across, down) {
    if (!map) return;
    const { size } = frame();
    view.x -= across / size / map.extent.x.size;
    view.y += down / size / map.extent.y.size;
    moved();
  }

  function moved() {
    for (const axis of ["x", "y"]) view[axis] = Math.min(1, Math.max(0, view[axis]));
    if (view.zoom === 1) Object.assign(view, { x: 0.5, y: 0.5 });
    changed();
  }

  function reset() {
    Object.assign(view, { zoom: 1 });
    moved();
  }

  const keys = {
    ArrowLeft: () => move(REACH, 0), ArrowRight: () => move(-REACH, 0),
    ArrowUp: () => move(0, REACH), ArrowDown: () => move(0, -REACH),
    "+": () => zoom(STEP), "=": () => zoom(STEP), "-": () => zoom(1 / STEP), 0: reset,
    Enter: () => at >= 0 && open(at), " ": () => at >= 0 && open(at),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    if (event.repeat && ["Enter", " "].includes(event.key)) return;
    keys[event.key]();
    if (!["Enter", " "].includes(event.key)) atMiddle();
  });
  const atMiddle = () => requestAnimationFrame(() => show(nearest(sheet.clientWidth / 2, sheet.clientHeight / 2, Infinity)));
  canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) atMiddle(); });
  canvas.addEventListener("blur", () => { if (!pins.contains(document.activeElement)) show(-1); });

  const fingers = new Map(); // pointer → where it is
  let drag = null; // { x, y, moved, selects } of the first pointer
  const where = (event) => {
    const { left, top } = sheet.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  sheet.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) / 400), ...where(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => { if (at < 0) zoom(2, ...where(event)); });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    const [x, y] = where(event);
    fingers.set(event.pointerId, [x, y]);
    drag = fingers.size === 1 ? { x, y, moved: false, selects: selected.isOn } : null;
    box.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = where(event);
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") show(nearest(x, y, NEAR));
      return;
    }
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()];
      const apart = Math.hypot(a[0] - b[0], a[1] - b[1]);
      fingers.set(event.pointerId, [x, y]);
      const [c, d] = [...fingers.values()];
      move((c[0] + d[0] - a[0] - b[0]) / 2, (c[1] + d[1] - a[1] - b[1]) / 2);
      if (apart) zoom(Math.hypot(c[0] - d[0], c[1] - d[1]) / apart, (c[0] + d[0]) / 2, (c[1] + d[1]) / 2);
      return;
    }
    fingers.set(event.pointerId, [x, y]);
    if (!drag) return;
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK;
    if (!drag.moved) return;
    if (drag.selects) {
      box.hidden = false;
      moveTo(box, Math.min(x, drag.x), Math.min(y, drag.y));
      box.style.width = `${Math.abs(x - drag.x)}px`;
      box.style.height = `${Math.abs(y - drag.y)}px`;
    } else {
      show(-1);
      move(x - before[0], y - before[1]);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = where(event);
    const ended = fingers.delete(event.pointerId) && !fingers.size ? drag : null;
    if (!ended) return;
    drag = null;
    box.hidden = true;
    if (!ended.moved) {
      const i = nearest(x, y, event.pointerType === "touch" ? 2 * NEAR : NEAR);
      if (i >= 0) open(i);
    } else if (ended.selects) {
      markWithin(Math.min(x, ended.x), Math.min(y, ended.y), Math.max(x, ended.x), Math.max(y, ended.y));
    }
  });
  canvas.addEventListener("pointercancel", (event) => {
    fingers.delete(event.pointerId);
    drag = null;
    box.hidden = true;
  });
  canvas.addEventListener("pointerleave", () => { if (!canvas.matches(":focus-visible")) show(-1); });

  const sized = new ResizeObserver(changed);
  sized.observe(sheet);
  fetchFields();

  return {
    element,
    show(filter) {
      wanted = filter;
      return fetchMap();
    },
    /** Draw anew: other items are selected. */
    redraw() {
      choosing.hidden = !selected.isOn;
      if (!map) return;
      showNote();
      changed();
    },
    end() {
      sized.disconnect();
      clearTimeout(resting);
    },
  };
}

const FAINT = 0x22808080; // the colour of points that are not lit

function moveTo(node, across, down) {
  node.style.transform = `translate(${Math.round(across)}px, ${Math.round(down)}px)`;
}

/** Where the items begin along each axis and how far they reach, of the whole range of coordinates. */
function extentOf({ x, y }) {
  const of = (values) => {
    let [least, greatest] = [LAST, 0];
    for (const value of values) {
      if (value < least) least = value;
      if (value > greatest) greatest = value;
    }
    const begin = values.length ? least / LAST : 0;
    return { begin, size: Math.max(values.length ? greatest / LAST - begin : 1, 1e-3) };
  };
  return { x: of(x), y: of(y) };
}

/** A step that visits all of n places, far from the one before. */
function strideOf(n) {
  const divides = (a, b) => (b ? divides(b, a % b) : a);
  let stride = Math.max(1, Math.round(n * 0.618));
  while (divides(stride, n) !== 1) stride += 1;
  return stride;
}

/** The offsets of a disc's pixels in an image. */
function discOf(radius, width) {
  const offsets = [];
  const edge = Math.ceil(radius);
  for (let down = -edge; down <= edge; down += 1) {
    for (let across = -edge; across <= edge; across += 1) {
      if (Math.hypot(across, down) <= radius) offsets.push(down * width + across);
    }
  }
  return offsets;
}
