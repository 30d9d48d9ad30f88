// Elements, built so that what the API says can only become text or a property, never markup.

import { load } from "./api.js";
import { t } from "./language.js";

const SMALL_SIDE = 96; // pixels: a smaller picture is shown with its pixels, not blurred

/**
 * An element. Properties are set as properties, data-* and aria-* as attributes.
 *
 * @template {string} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} properties
 * @returns {Page.Made<Tag>}
 */
export function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  /** @type {any} */
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return node;
}

/** Let the browser save a file. */
export function save(file, name) {
  const link = el("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Copy a text, and say on the `button` that it was done. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text); // only where the origin is secure
  } catch {
    const area = el("textarea", { value: text });
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = t`Copied`;
  setTimeout(() => { button.textContent = t`Copy`; }, 2000);
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Let a key that is held press a button once; other keys go their way, held or not. */
export function pressOnce(event) {
  if (event.repeat && ["Enter", " "].includes(event.key)) event.preventDefault();
}

/** Let a button act when it is pressed twice: the first press shows `asking`, a text or a function that
 * returns one. A double click or a held key is one press. */
export function pressTwice(button, asking, act) {
  button.onkeydown = pressOnce;
  button.onclick = ({ detail }) => {
    if (detail > 1) return;
    if (button.classList.replace("quiet", "danger")) button.textContent = asking.call ? asking() : asking;
    else act();
  };
}

/** Open a dialog in a part of the page, in place of another one that is open there; closed, it is
 * gone, and `closed` is called. */
export function openDialog(dialog, within, closed = () => {}) {
  for (const other of within.querySelectorAll("dialog[open]")) other.close();
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  within.append(dialog);
  dialog.showModal();
}

/** The beginning of a dialog: what it is about, what else there is to press, and its end. */
export const dialogHeader = (title, ...more) => el("header", {}, title, more, el("button.close", {
  type: "button", onclick: ({ target }) => target.closest("dialog").close(), "aria-label": t`Close`,
}, "×"));

export const glyph = (name) =>
  svg("svg", { class: "glyph", "aria-hidden": "true" }, svg("use", { href: `#glyph-${name}` }));

/** A picture that keeps its pixels when it is tiny, and shows a note when it cannot be shown. */
export function picture(url, alt, lazy = false) {
  const image = el("img", { alt, draggable: false });
  const frame = el("span.picture", {}, image);
  if (lazy) image.loading = "lazy";
  image.onload = () => {
    const side = Math.max(image.naturalWidth, image.naturalHeight);
    image.classList.toggle("pixelated", side < SMALL_SIDE);
  };
  const showNone = () => frame.replaceChildren(el("span.unseen", {}, t`no preview`));
  image.onerror = showNone;
  if (url) load(image, url);
  else showNone(); // of an item that came as a vector
  return frame;
}
