// Cropping and turning a picture before it is searched with; the file itself stays unchanged.

import { el, openDialog } from "../elements.js";
import { t } from "../language.js";

const SHOWN = 1000; // pixels of the longer side on the screen
const STEP = 0.02; // of a side, by one press of an arrow key
const LEAST = 0.04; // of a side
const LOSSLESS = 1e6; // pixels up to which a part is kept as PNG; a larger one becomes JPEG

const WHOLE = { x: 0, y: 0, w: 1, h: 1 };
const CORNERS = {
  nw: () => t`Upper left corner`, ne: () => t`Upper right corner`,
  sw: () => t`Lower left corner`, se: () => t`Lower right corner`,
};

const within = (value, least, most) => Math.min(most, Math.max(least, value));

/** The part after the picture was turned to the right. */
export const turned = ({ x, y, w, h }) => ({ x: 1 - y - h, y: x, w: h, h: w });

/** The part with one of its corners, or all of it ("box"), moved by shares of the sides. */
export function moved({ x, y, w, h }, what, dx, dy) {
  if (what === "box") return { x: within(x + dx, 0, 1 - w), y: within(y + dy, 0, 1 - h), w, h };
  const [left, top, right, bottom] = [x, y, x + w, y + h];
  const west = what.endsWith("w") ? within(left + dx, 0, right - LEAST) : left;
  const east = what.endsWith("e") ? within(right + dx, left + LEAST, 1) : right;
  const north = what.startsWith("n") ? within(top + dy, 0, bottom - LEAST) : top;
  const south = what.startsWith("s") ? within(bottom + dy, top + LEAST, 1) : bottom;
  return { x: west, y: north, w: east - west, h: south - north };
}

/** The part between two points, in whatever direction it was drawn. */
function between(a, b) {
  const [w, h] = [Math.max(LEAST, Math.abs(a.x - b.x)), Math.max(LEAST, Math.abs(a.y - b.y))];
  return { x: Math.min(a.x, b.x, 1 - w), y: Math.min(a.y, b.y, 1 - h), w, h };
}

/** `image` turned to the right so many times, on a canvas so large at most. */
function drawn(image, turns, most = Infinity) {
  const scale = Math.min(1, most / Math.max(image.width, image.height));
  const [w, h] = [Math.round(image.width * scale), Math.round(image.height * scale)];
  const canvas = el("canvas", turns % 2 ? { width: h, height: w } : { width: w, height: h });
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "#fff"; // as the service lays what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate(canvas.width / 2, canvas.height / 2);
  context.rotate((turns * Math.PI) / 2);
  context.drawImage(image, -w / 2, -h / 2, w, h);
  return canvas;
}

/** The part of the turned picture, as an image file. */
function cut(image, { turns, part }) {
  const whole = drawn(image, turns);
  const [x, y] = [Math.round(part.x * whole.width), Math.round(part.y * whole.height)];
  const canvas = el("canvas", {
    width: Math.max(1, Math.round(part.w * whole.width)),
    height: Math.max(1, Math.round(part.h * whole.height)),
  });
  canvas.getContext("2d", { alpha: false }).drawImage(whole, -x, -y);
  const small = canvas.width * canvas.height <= LOSSLESS;
  return new Promise((done) => canvas.toBlob(done, small ? "image/png" : "image/jpeg", 0.95));
}

const latest = new WeakMap(); // by part of the page: the picture that was opened last

/** Let a person crop and turn the picture in `blob`, in a dialog `within` the page. The part as a file; `blob` itself where all
 * of it is wanted; null where nothing is to be searched with, or where another picture was opened
 * before this one was decoded. Throws the browser's error for a file that it cannot show. */
export async function crop(blob, within) {
  const mine = Symbol("picture");
  latest.set(within, mine);
  const isLatest = () => latest.get(within) === mine;
  const image = await createImageBitmap(blob).catch((error) => {
    if (isLatest()) throw error;
    return null;
  });
  if (!isLatest()) {
    image?.close();
    return null;
  }
  const steps = [{ turns: 0, part: WHOLE }];
  const now = () => steps.at(-1);
  const said = el("p.status", { role: "status", "data-testid": "crop-status" });
  const box = el("div.box", { tabIndex: 0, role: "group", "aria-label": t`Part of the picture` },
    Object.entries(CORNERS).map(([name, words]) =>
      el(`button.corner.${name}`, { type: "button", "aria-label": words(), "data-corner": name })));
  const stage = el("div.stage", { "data-testid": "crop-stage" });

  function show() {
    const { part } = now();
    for (const [name, value] of Object.entries({ left: part.x, top: part.y, width: part.w, height: part.h })) {
      box.style[name] = `${100 * value}%`;
    }
    const percent = (share) => Math.round(100 * share);
    said.textContent = t`${percent(part.w)} % × ${percent(part.h)} % of the picture, ${percent(part.x)} % from the left, ${percent(part.y)} % from the top.`;
  }

  function redraw() {
    stage.replaceChildren(drawn(image, now().turns, SHOWN), box);
    show();
  }

  function change(part, { again = false } = {}) {
    if (again) steps.pop();
    steps.push({ turns: now()?.turns ?? 0, part });
    show();
  }

  function turn(times) {
    let { turns, part } = now();
    for (let i = 0; i < times; i += 1) part = turned(part);
    turns = (turns + times) % 4;
    steps.push({ turns, part });
    redraw();
  }

  function back() {
    if (steps.length > 1) steps.pop();
    redraw();
  }

  listen(stage, box, { now: () => now().part, change });
  const button = (words, act, name = "button") => el(name, { type: "button", onclick: act }, words);
  const whole = () => { steps.push({ turns: 0, part: WHOLE }); redraw(); };
  return new Promise((resolve) => {
    let wanted = false;
    const dialog = el("dialog.crop", { "aria-labelledby": "crop-title", "data-testid": "crop" },
      el("h2", { id: "crop-title" }, t`Crop & rotate`), stage, said,
      el("div.buttons", {},
        button(t`Turn left`, () => turn(3)), button(t`Turn right`, () => turn(1)),
        button(t`Undo`, back), button(t`Reset`, whole),
        button(t`Search with this`, () => { wanted = true; dialog.close(); }, "button.primary"),
        button(t`Cancel`, () => dialog.close())));
    const closed = async () => {
      const { turns, part } = now();
      const all = turns === 0 && part.w === 1 && part.h === 1;
      resolve(!wanted ? null : all ? blob : await cut(image, now()));
      image.close();
    };
    redraw();
    openDialog(dialog, within, closed);
    box.focus();
  });
}

/** Pointer and keys: the box and its corners are moved, a new box is drawn beside it. */
function listen(stage, box, { now, change }) {
  let drag = null;
  const at = (event) => {
    const frame = stage.getBoundingClientRect();
    return {
      x: within((event.clientX - frame.left) / frame.width, 0, 1),
      y: within((event.clientY - frame.top) / frame.height, 0, 1),
    };
  };
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    const from = at(event);
    const inside = event.target.closest(".box") && now().w * now().h < 0.99;
    const what = event.target.dataset?.corner ?? (inside ? "box" : null); // null: a new box
    drag = { what, from, part: now(), begun: false };
  });
  stage.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = at(event);
    const [dx, dy] = [to.x - drag.from.x, to.y - drag.from.y];
    if (!drag.begun && Math.hypot(dx, dy) < 0.01) return; // a click changes nothing
    const part = drag.what ? moved(drag.part, drag.what, dx, dy) : between(drag.from, to);
    change(part, { again: drag.begun });
    drag.begun = true;
  });
  for (const over of ["pointerup", "pointercancel"]) {
    stage.addEventListener(over, () => { drag = null; });
  }
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const what = event.target.dataset.corner ?? (event.shiftKey ? "se" : "box");
    change(moved(now(), what, STEP * by[0], STEP * by[1]));
  });
}
