// The ways in which pictures come: chosen, photographed, pasted, dropped; as files, or as a link.

import { Problem } from "../api.js";
import { t } from "../language.js";
import { wanted } from "../wanted.js";

const WITHOUT_IMAGE = {
  chosen: t`There is no image in what was chosen`,
  pasted: t`There is no image in what was pasted`,
  dropped: t`There is no image in what was dropped`,
};

export const withoutImage = (how) => new Problem({
  title: WITHOUT_IMAGE[how],
  detail: t`The page searches with image files.`,
  remedy: t`Save the image first, then drop or choose the file.`,
});

const paths = new WeakMap(); // file → its path in a folder that was dropped

/** A file's path in the folder that was chosen or dropped, else its name. */
export const pathOf = (file) => file.webkitRelativePath || paths.get(file) || file.name || "pasted";

const IMAGE = /\.(avif|bmp|dng|gif|hei[cf]|jfif|jp2|jpe?g|jxl|png|tiff?|webp)$/i;

/** Whether a file claims to be an image, or claims nothing: browsers do not know the type of each format. */
export const isImage = ({ type, name = "" }) => (type ? type.startsWith("image/") : IMAGE.test(name) || !name.includes("."));

/** The files below what was dropped, folders included. */
async function filesBelow(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    paths.set(file, entry.fullPath.replace(/^\//, ""));
    return [file];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) { // it gives a hundred at a time
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    for (const one of some) found.push(...await filesBelow(one));
  }
}

/** The files of a drop, those of folders too. */
export async function droppedFiles({ items, files }) {
  const plain = [...files]; // both are empty once the event is over
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some(({ isDirectory }) => isDirectory)) return plain;
  return (await Promise.all(entries.map(filesBelow))).flat();
}

/** Hand all that comes to `take(files, link, how it came)`; a link is null where there is none.
 * `$` finds the inputs, `target` is where may be dropped and pasted, `part` shows a drag. While a dialog
 * is open there, nothing is taken.
 * What this answers ends it. */
export function takeFiles($, target, part, take) {
  const ending = new AbortController();
  const on = (node, name, heard) => node.addEventListener(name, heard, { signal: ending.signal });
  for (const [id, how] of [["file-input", "chosen"], ["folder-input", "chosen"], ["camera-input", "chosen"]]) {
    on($(id), "change", ({ target: input }) => {
      if (input.files.length) take([...input.files], null, how);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  on(target, "paste", (event) => {
    const { clipboardData } = event;
    if (isCovered(part) || event.composedPath()[0].matches?.("input:not([type=file]), textarea")) return;
    if (clipboardData.files.length || clipboardData.types.length) {
      take([...clipboardData.files], linkOf(clipboardData), "pasted");
    }
  });
  takeDrops(on, target, part, take);
  return () => ending.abort();
}

const isCovered = (part) => part.querySelector("dialog[open]") !== null;

/** The link that is carried; of a picture dragged out of a page that is the picture's own. */
function linkOf(data) {
  const [shown] = new DOMParser().parseFromString(wanted.html(data.getData("text/html")), "text/html").images;
  const listed = data.getData("text/uri-list").split(/\r?\n/).find((line) => line && line[0] !== "#");
  const link = shown?.getAttribute("src") ?? listed ?? data.getData("text/plain").trim();
  return /^(https?:|data:image\/)/i.test(link) && URL.canParse(link) ? link : null;
}

function takeDrops(on, target, part, take) {
  let ending;
  const carries = (event) => event.dataTransfer.types.some((type) =>
    type === "Files" || type === "text/uri-list");
  const rest = () => part.classList.remove("dragging");
  on(target, "dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault(); // or the browser would open the file in place of the page
    event.dataTransfer.dropEffect = isCovered(part) ? "none" : "copy";
    if (isCovered(part)) return;
    part.classList.add("dragging");
    clearTimeout(ending); // dragover repeats while something hovers; dragleave cannot be trusted
    ending = setTimeout(rest, 300);
  });
  on(target, "drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    rest();
    if (isCovered(part)) return;
    const link = linkOf(event.dataTransfer);
    droppedFiles(event.dataTransfer).then((files) => take(files, link, "dropped"));
  });
}
