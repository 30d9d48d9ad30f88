// A batch as one HTML file with its pictures, for readers who have no access to the service.

import { verdictOf } from "../answer.js";
import { ask } from "../api.js";
import { el } from "../elements.js";
import { language, t } from "../language.js";
import { percent } from "../words.js";

const SIDE = 160; // pixels of a picture's longer side

const STYLE = [
  "body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 15px/1.45 system-ui, sans-serif; }",
  "table { width: 100%; border-collapse: collapse; }",
  "th, td { padding: .5rem .75rem .5rem 0; border-top: 1px solid #ccc; text-align: start; overflow-wrap: anywhere; }",
  "img { display: block; margin-bottom: .25rem; }",
  "tr { break-inside: avoid; }",
].join("\n");

/** A small copy of a picture as an address that holds it; null where the browser cannot draw it. */
async function small(blob) {
  const bitmap = await createImageBitmap(blob);
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas", {
    width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.8);
}

const drawn = (image) => Promise.resolve(image).then(small).catch(() => null);

async function cells(entry, todo) {
  const { answer, name, blob } = entry;
  const first = answer?.results[0];
  const shown = answer && verdictOf(answer);
  const p = shown?.withholds ? null : first?.match_probability ?? null;
  const [own, found] = await Promise.all([
    drawn(blob), first?.thumbnail_url ? drawn(ask(first.thumbnail_url).then((reply) => reply.blob())) : null,
  ]);
  const image = (src) => src && el("img", { src, alt: "" });
  return [
    [image(own), name],
    [shown?.word],
    first ? [image(found), first.label ?? first.id] : [],
    [p === null ? "" : percent(p)],
    [todo],
  ].map((children) => el("td", { dir: "auto" }, children));
}

/** The report as a file. `todoOf` says in words what is to be done with an entry, `sentence` sums up. */
export async function report(entries, gallery, sentence, todoOf) {
  const title = t`${gallery.name}: ${String(entries.length)} photographs`;
  const heads = [t`Photograph`, t`Answer`, t`First result`, t`Match probability`, t`What to do`];
  const rows = [];
  for (const entry of entries) rows.push(el("tr", {}, await cells(entry, todoOf(entry))));
  const page = document.implementation.createHTMLDocument(title);
  page.documentElement.lang = language;
  const meta = el("meta");
  meta.setAttribute("charset", "utf-8");
  page.head.prepend(meta, el("style", {}, STYLE));
  page.body.append(el("h1", {}, title), el("p", {}, sentence),
    el("p", {}, new Date().toLocaleString(language, { dateStyle: "long", timeStyle: "short" })),
    el("table", {}, el("thead", {}, el("tr", {}, heads.map((words) => el("th", { scope: "col" }, words)))),
      el("tbody", {}, rows)));
  return new Blob(["<!doctype html>\n", page.documentElement.outerHTML], { type: "text/html" });
}
