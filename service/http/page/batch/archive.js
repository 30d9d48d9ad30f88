// A batch as one ZIP file for readers who have no access to the service: a report, which is a web page
// with small pictures beside it, and the table.

import { verdictOf } from "../answer.js";
import { ask } from "../api.js";
import { el } from "../elements.js";
import { language, t } from "../language.js";
import { VERDICTS, count, percent } from "../words.js";
import { STATES, stateOf, todo } from "./states.js";
import { Zip } from "./zip.js";

const SIDE = 320; // pixels of a picture's longer side, at most
const SMALL_SIDE = 96; // a smaller picture is shown with its pixels, not blurred

/** The report runs nothing, and loads nothing but its pictures. */
const POLICY = "default-src 'none'; img-src 'self' file:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE = [
  ":root { color-scheme: light dark; --rule: light-dark(#d3d9d5, #323c38); --muted: light-dark(#56625d, #9daaa4); }",
  "body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; }",
  "h1, h2, h3 { line-height: 1.25; }",
  "h2 { margin-top: 2.5rem; }",
  "h2::first-letter { text-transform: uppercase; }",
  "h3 { margin: 0; font-size: 1rem; }",
  "h1, h3, dd, .note { overflow-wrap: anywhere; }",
  "table { border-collapse: collapse; }",
  "th, td { padding: .4rem 1rem .4rem 0; border-top: 1px solid var(--rule); text-align: start; vertical-align: top; }",
  "td:last-child { text-align: end; font-variant-numeric: tabular-nums; }",
  "ol { margin: 0; padding: 0; list-style: none; }",
  "li { display: grid; grid-template-columns: 9rem 9rem 1fr; gap: 0 1.25rem; padding: 1rem 0; border-top: 1px solid var(--rule); }",
  "figure { margin: 0; }",
  "figcaption, .note, dt { color: var(--muted); font-size: .875rem; }",
  "img { display: block; max-width: 9rem; max-height: 9rem; }",
  ".pixels { width: 9rem; image-rendering: pixelated; }",
  "p { margin: .4rem 0; }",
  "dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .4rem 0; }",
  "dt { padding-top: .1rem; }",
  "dd { margin: 0; }",
  "[data-verdict] { --verdict: #525d59; }",
  "[data-verdict] b { color: light-dark(var(--verdict), color-mix(in oklab, var(--verdict) 60%, #fff)); }",
  "[data-verdict='match'] { --verdict: #0b6b4f; }",
  "[data-verdict='ambiguous'] { --verdict: #875800; }",
  "[data-verdict='no_match'] { --verdict: #2c4d79; }",
  "[data-verdict='out_of_distribution'] { --verdict: #a3321d; }",
  "@media (max-width: 40rem) {",
  "  li { grid-template-columns: 1fr 1fr; }",
  "  li > div { grid-column: 1 / -1; }",
  "  img { max-width: 100%; }",
  "}",
  "@media print {",
  "  :root { color-scheme: light; }",
  "  body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }",
  "  li { break-inside: avoid; grid-template-columns: 4cm 4cm 1fr; }",
  "  img { max-width: 4cm; max-height: 3.5cm; }",
  "  h2 { break-after: avoid; }",
  "}",
].join("\n");

/** A small JPEG of a picture: { blob, pixels }; null where the browser cannot draw it. Only one picture
 * is unpacked at a time, however many there are. */
async function small(picture) {
  const bitmap = await createImageBitmap(picture);
  const { width, height } = bitmap;
  const scale = Math.min(1, SIDE / Math.max(width, height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale)));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // below what is transparent
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.8 });
  return { blob, pixels: Math.max(width, height) < SMALL_SIDE };
}

/** A file name that every system takes: a number, which no other has, and letters of a text. */
export function fileName(number, text) {
  const letters = text.normalize("NFD").replace(/\p{M}/gu, "").replace(/[^A-Za-z0-9]+/g, "-");
  const short = letters.slice(0, 60).replace(/^-+|-+$/g, "");
  return `${String(number).padStart(4, "0")}${short && `-${short}`}.jpg`;
}

/** Puts small pictures into a ZIP. What it answers is { path, pixels }, or null without a picture. */
function pictures(zip, signal) {
  const found = new Map(); // item → its picture, which is that of many photographs

  async function add(path, picture) {
    const drawn = await small(picture).catch(() => null);
    if (!drawn) return null;
    await zip.add(path, drawn.blob);
    return { path, pixels: drawn.pixels };
  }

  const photograph = ({ blob, name }, number) =>
    add(`thumbnails/${fileName(number, name.split("/").at(-1).replace(/\.\w+$/, ""))}`, blob);

  async function result({ id, label, thumbnail_url: url }, number) {
    if (!url) return null; // of an item that came as a vector
    if (!found.has(id)) {
      const picture = await ask(url, { signal }).then((reply) => reply.blob()).catch(() => null);
      found.set(id, picture && await add(`thumbnails/results/${fileName(number, label ?? id)}`, picture));
    }
    return found.get(id);
  }

  return { photograph, result };
}

const date = (time) => new Date(time).toLocaleString(language, { dateStyle: "long", timeStyle: "short" });

/** A batch as a report: a document, built where nothing of it is loaded. */
function report(gallery, { entries, accepted, sentences }) {
  const title = t`${gallery.name}: ${count(entries.length)} {1|photograph|photographs}`;
  const page = document.implementation.createHTMLDocument(title);
  const images = []; // they get their addresses last, so that this page does not load them
  page.documentElement.lang = language;
  const meta = (properties) => Object.assign(page.createElement("meta"), properties);
  const charset = meta({});
  charset.setAttribute("charset", "utf-8");
  page.head.prepend(charset, meta({ httpEquiv: "Content-Security-Policy", content: POLICY }),
    meta({ name: "viewport", content: "width=device-width, initial-scale=1" }));
  const main = el("main", {}, el("h1", {}, title), el("p.note", {}, date(Date.now())),
    sentences.filter(Boolean).map((words) => el("p", {}, words)), summary(entries));
  page.body.append(main);
  const lists = new Map();

  function figure(picture, caption) {
    const image = picture && el(picture.pixels ? "img.pixels" : "img", { alt: "" });
    if (picture) images.push([image, picture.path]);
    return el("figure", {}, image ?? el("span.note", {}, t`no preview`), caption && el("figcaption", { dir: "auto" }, caption));
  }

  /** Add a photograph, with its picture and that of the first result. */
  function add(entry, own, found) {
    const state = stateOf(entry, accepted);
    if (!lists.has(state)) {
      lists.set(state, el("ol"));
      const n = entries.filter((other) => stateOf(other, accepted) === state).length;
      main.append(el("section", {}, el("h2", {}, t`${STATES[state]()}: ${count(n)}`), lists.get(state)));
    }
    const first = entry.answer?.results[0];
    lists.get(state).append(el("li", {}, figure(own),
      first ? figure(found, t`First result`) : el("span"), el("div", {}, ...about(entry, state))));
  }

  function end() {
    const bundles = [...new Set(entries.map(({ answer }) => answer?.bundle.id).filter(Boolean))];
    if (bundles.length) main.append(el("p.note", {}, t`${t`Bundle`}: ${bundles.join(", ")}`));
    for (const [image, path] of images) image.setAttribute("src", path);
    // The policy of this page, which forbids inline styles, holds for the elements of the report too.
    const [head, ...rest] = page.documentElement.outerHTML.split("</head>");
    return new Blob(["<!doctype html>\n", head, `<style>${STYLE}</style></head>`, rest.join("</head>")], { type: "text/html" });
  }

  return { add, end };
}

/** How many photographs got which answer, and what it means. */
function summary(entries) {
  const names = entries.map(({ answer, problem }) => answer?.verdict ?? (problem ? "failed" : "waiting"));
  const order = [...new Set([...Object.keys(VERDICTS), ...names])];
  const rows = order.filter((name) => names.includes(name)).map((name) => {
    const { word, legend = "" } = VERDICTS[name] ?? { word: STATES[name]?.() ?? name };
    return el("tr", { "data-verdict": name }, el("th", { scope: "row" }, el("b", {}, word)),
      el("td", {}, legend), el("td", {}, count(names.filter((other) => other === name).length)));
  });
  return el("table", {}, el("thead", {}, el("tr", {}, [t`Answer`, t`Meaning`, t`Photographs`].map((words) =>
    el("th", { scope: "col" }, words)))), el("tbody", {}, rows));
}

/** What is known of a photograph: path, verdict, first result, and what was decided by whom. */
function about(entry, state) {
  const { answer, name, decision, accepted } = entry;
  const first = answer?.results[0];
  const shown = answer && verdictOf(answer);
  const p = shown?.withholds ? null : first?.match_probability ?? null;
  const facts = [
    first && [t`First result`, [first.label, first.id].filter((part) => part !== null).join(" · ")],
    p !== null && [t`Match probability`, percent(p)],
    [decision ? t`Decision` : t`What to do`, todo(entry, state)],
    decision?.reviewer && [t`Decided by`, decision.reviewer],
    (decision || accepted) && [t`Time`, date(decision?.at ?? accepted)],
  ].filter(Boolean);
  return [
    el("h3", { dir: "auto" }, name),
    answer && el("p", { "data-verdict": answer.verdict }, el("b", {}, shown.word), ". ", shown.says(answer)),
    el("dl", {}, facts.map(([term, words]) => [el("dt", {}, term), el("dd", { dir: "auto" }, words)])),
  ];
}

/** The batch as a ZIP file: `entries` in their order, those in `accepted` automatically; `sentences`
 * sum it up, `table` is the table as a file. `told(n)` is called when the first `n` are packed.
 * Rejects when `signal` aborts. */
export async function archive(gallery, { entries, accepted, sentences, table, told, signal }) {
  const zip = new Zip();
  const { photograph, result } = pictures(zip, signal);
  const page = report(gallery, { entries, accepted, sentences });
  for (const [i, entry] of entries.entries()) {
    const first = entry.answer?.results[0];
    page.add(entry, await photograph(entry, i + 1), first && await result(first, i + 1));
    signal.throwIfAborted();
    told(i + 1);
  }
  await zip.add("report.html", page.end());
  await zip.add("results.csv", table);
  return zip.end();
}
