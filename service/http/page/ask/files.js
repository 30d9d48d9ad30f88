// The ways in which pictures come: chosen, photographed, pasted, dropped; as files, or as a link.

import { Problem } from "../api.js";
import { t } from "../language.js";

const WITHOUT_IMAGE = {
  chosen: t`There is no image in what was chosen`,
  pasted: t`There is no image in what was pasted`,
  dropped: t`There is no image in what was dropped`,
};

export const withoutImage = (how) => new Problem({
  title: WITHOUT_IMAGE[how],
  detail: t`Searched with are image files, and links to them.`,
  remedy: t`Save the image first, then drop or choose the file.`,
});

/** Hand all that comes to `take(files, link, how it came)`; a link is null where there is none.
 * `$` finds the inputs, `target` is where may be dropped and pasted, `part` is told of a drag.
 * What this answers ends it. */
export function takeFiles($, target, part, take) {
  const ending = new AbortController();
  const on = (node, name, heard) => node.addEventListener(name, heard, { signal: ending.signal });
  for (const [id, how] of [["file-input", "chosen"], ["camera-input", "chosen"]]) {
    on($(id), "change", ({ target: input }) => {
      if (input.files.length) take([...input.files], null, how);
      input.value = ""; // so that the same file can be chosen again
    });
  }
  on(target, "paste", (event) => {
    const { clipboardData } = event;
    if (event.composedPath()[0].matches?.("input:not([type=file]), textarea")) return;
    if (clipboardData.files.length || clipboardData.types.length) {
      take([...clipboardData.files], linkOf(clipboardData), "pasted");
    }
  });
  takeDrops(on, target, part, take);
  return () => ending.abort();
}

/** The link that is carried; of a picture dragged out of a page that is the picture's own. */
function linkOf(data) {
  const [shown] = new DOMParser().parseFromString(data.getData("text/html"), "text/html").images;
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
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    part.classList.add("dragging");
    clearTimeout(ending); // dragover repeats while something hovers; dragleave cannot be trusted
    ending = setTimeout(rest, 300);
  });
  on(target, "drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    rest();
    take([...event.dataTransfer.files], linkOf(event.dataTransfer), "dropped");
  });
}
