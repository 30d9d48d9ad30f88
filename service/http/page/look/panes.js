// Two pictures, zoomed and moved together: side by side, in turns, or one over the other.

import { load } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";

export const STEP = 1.4; // of one press of a key
const MOST = 16; // times as large
const TURN = 700; // ms that each picture is shown in turns: slower than any flash to beware of
const SMALL_SIDE = 200; // pixels: a smaller picture is shown with its pixels, not blurred

/** Two panes. `show` gives them their pictures, `mode` arranges them, `zoom` and `move` look
 * closer; what `told` is called with says which of the pictures is to be seen. */
export function panes(told) {
  const view = { scale: 1, x: 0, y: 0 }; // x, y: where the pictures begin, in sizes of a pane
  const [question, candidate] = ["question", "candidate"].map(pane);
  const element = el("div.panes", { "data-testid": "panes", "data-mode": "beside" },
    question.figure, candidate.figure);
  const state = { turning: null };

  function place() {
    const least = 1 - view.scale;
    view.x = Math.min(0, Math.max(least, view.x));
    view.y = Math.min(0, Math.max(least, view.y));
    const transform = `translate(${100 * view.x}%, ${100 * view.y}%) scale(${view.scale})`;
    for (const { image } of [question, candidate]) image.style.transform = transform;
    element.dataset.scale = view.scale.toFixed(2);
  }

  /** `factor` times as large, about a point of the pane (in its sizes). */
  function zoom(factor, at = { x: 0.5, y: 0.5 }) {
    const scale = Math.min(MOST, Math.max(1, view.scale * factor));
    for (const axis of ["x", "y"]) {
      view[axis] = at[axis] - (at[axis] - view[axis]) * (scale / view.scale);
    }
    view.scale = scale;
    place();
  }

  function move(x, y) {
    view.x += x;
    view.y += y;
    place();
  }

  function reset() {
    Object.assign(view, { scale: 1, x: 0, y: 0 });
    place();
  }

  /** Show the other picture, where one lies upon the other. */
  function swap() {
    element.dataset.shown = element.dataset.shown === "question" ? "candidate" : "question";
    told(element.dataset.shown === "question" ? t`your photo` : t`the item`);
  }

  function stop() {
    clearInterval(state.turning);
    state.turning = null;
  }

  /** beside, flicker or overlay. In turns the pictures change automatically, unless motion is
   * unwanted: then, as at any time, by `swap`. */
  function mode(name) {
    stop();
    element.dataset.mode = name;
    element.dataset.shown = "candidate";
    mix(0.5);
    if (name === "flicker" && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
      state.turning = setInterval(swap, TURN);
    }
  }

  /** How much of the item is seen over the question, 0 to 1. */
  function mix(share) {
    element.style.setProperty("--mix", String(share));
  }

  listen([question.frame, candidate.frame], { zoom, move });
  return {
    element, zoom, move, reset, swap, mode, mix, stop,
    zoomed: () => view.scale > 1,
    turns: () => state.turning !== null,
    showQuestion: (url, alt) => question.show(url, alt, t`Your photo`),
    showText: (text) => question.say(text, t`Your words`),
    showCandidate: (url, alt, caption) => candidate.show(url, alt, caption),
  };
}

function pane(name) {
  const image = el("img", { draggable: false });
  const caption = el("figcaption", { dir: "auto" });
  const size = el("small", {}); // distinguishes a preview from a photograph
  const frame = el("div.frame", {}, image);
  const words = el("blockquote", { hidden: true, tabIndex: 0, dir: "auto" }); // in place of a picture
  const figure = el(`figure.pane.${name}`, { "data-testid": `pane-${name}` }, frame, words, caption);
  image.onload = () => {
    const side = Math.max(image.naturalWidth, image.naturalHeight);
    image.classList.toggle("pixelated", side > 0 && side < SMALL_SIDE);
    size.textContent = ` ${image.naturalWidth} × ${image.naturalHeight}`;
  };
  const say = (text, title) => {
    [frame.hidden, words.hidden] = [true, false];
    words.textContent = text;
    caption.textContent = title;
  };
  const show = (url, alt, title) => {
    [frame.hidden, words.hidden] = [false, true];
    image.alt = alt;
    size.textContent = url ? "" : ` ${t`no preview`}`;
    caption.replaceChildren(title, size);
    return new Promise((resolve) => {
      image.onerror = () => resolve(false);
      image.addEventListener("load", () => resolve(true), { once: true });
      image.hidden = !url; // an item that came as a vector has no picture
      if (url) load(image, url);
      else resolve(false);
    });
  };
  return { figure, frame, image, show, say };
}

/** Wheel and double click zoom, one finger or the mouse moves, two fingers do both. */
function listen(frames, { zoom, move }) {
  const fingers = new Map();
  const share = (event, frame) => {
    const box = frame.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.x - b.x, a.y - b.y);
  };
  for (const frame of frames) {
    frame.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, share(event, frame));
    }, { passive: false });
    frame.addEventListener("dblclick", (event) => zoom(2, share(event, frame)));
    frame.addEventListener("pointerdown", (event) => {
      frame.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, share(event, frame));
    });
    frame.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const now = share(event, frame);
      const apart = fingers.size === 2 ? spread() : 0;
      fingers.set(event.pointerId, now);
      if (apart) zoom(spread() / apart, now);
      else move(now.x - before.x, now.y - before.y);
    });
    for (const over of ["pointerup", "pointercancel"]) {
      frame.addEventListener(over, (event) => fingers.delete(event.pointerId));
    }
  }
}
