// Photographs become items of a gallery: labels from folders or typed, and what the browser keeps of an
// unfinished upload over a reload.

import { Problem, askJson, deleteItem, imageForm, patiently, permissions } from "../api.js";
import { droppedFiles, isImage, pathOf } from "../ask/files.js";
import { dialogHeader, el, openDialog } from "../elements.js";
import { addToBatch, batchOf, forgetBatch, updateRow } from "../kept.js";
import { t } from "../language.js";
import { forgetLabels } from "../look/finding.js";
import { reasonOf } from "../problem.js";
import { said } from "../service_texts.js";
import { brief, count } from "../words.js";
import { createGallery, nameField } from "./creating.js";

const AT_ONCE = 2; // uploads
const KNOWN_AT_ONCE = 20; // ids that are looked up in one request
const NEW = "\u0000"; // no name of a gallery

const keptAs = (gallery) => `${gallery}/adding`;

/** Ids and labels of files by their paths: the folder that was chosen is left out, the last folder
 * below it is the label. */
export function namesOf(paths) {
  const parts = paths.map((path) => path.split("/"));
  const root = parts.every((one) => one.length > 1 && one[0] === parts[0][0]) ? 1 : 0;
  return parts.map((one) => ({ id: one.slice(root).join("/"), folder: one.slice(root, -1).at(-1) ?? null }));
}

/** A hash of a file's bytes (FNV-1a, two lanes, 64 bits), to find a photograph that was chosen twice. */
async function contentOf(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let [a, b] = [0x811c9dc5, bytes.length];
  for (const byte of bytes) {
    a = Math.imul(a ^ byte, 0x01000193);
    b = Math.imul(b ^ byte, 0x85ebca6b) + 1;
  }
  return `${bytes.length} ${a >>> 0} ${b >>> 0}`;
}

/** Which of these ids are items of the gallery. */
async function idsThere(gallery, ids) {
  const there = new Set();
  for (let at = 0; at < ids.length; at += KNOWN_AT_ONCE) {
    const wanted = ids.slice(at, at + KNOWN_AT_ONCE);
    const { items } = await askJson("/v1/galleries/{gallery}/items", {
      path: { gallery }, query: { limit: KNOWN_AT_ONCE, filter: JSON.stringify({ id: { in: wanted } }) },
    });
    for (const { id } of items) there.add(id);
  }
  return there;
}

/** Open the dialog that adds photographs to `gallery`, or to a new one with its encoder. `changed` is
 * called when it closes after items were added, with the name of their gallery.
 *
 * @param {Page.Gallery} gallery */
export async function openAdding(gallery, { within, changed, review }) {
  const { admin } = await permissions();
  const state = { target: gallery.name, rows: [], running: null, added: 0, others: 0 };
  const status = el("p.status", { role: "status", "data-testid": "adding-status" });
  const problem = el("p.warning", { role: "alert", hidden: true, "data-testid": "adding-problem" });
  const progress = el("progress", { hidden: true, "aria-label": t`Added` });
  const list = el("ul.plain", { "data-testid": "adding-failed" });

  const name = nameField("new-gallery");
  const named = el("p", { hidden: true }, el("label", { htmlFor: "new-gallery" }, t`Name of the new gallery`), " ", name,
    el("span.note", {}, t`Small letters, digits, dots and hyphens.`));
  const target = el("select", { id: "adding-to", onchange: () => { named.hidden = target.value !== NEW; } },
    el("option", { value: gallery.name }, gallery.name), admin && el("option", { value: NEW }, t`New gallery…`));

  const fixed = el("input", { type: "text", id: "one-label", maxLength: 200, "aria-label": t`Label of all photos` });
  const radio = (value, words, ...more) => el("p", {}, el("label", {}, el("input", {
    type: "radio", name: "labels", value, checked: value === "folders", onchange: summarise,
  }), ` ${words}`), " ", more);
  const inSeries = el("input", { type: "checkbox", id: "in-series", onchange: summarise });
  const labels = el("fieldset", {}, el("legend", {}, t`Labels`),
    radio("folders", t`from the folders: each folder is a label`),
    radio("one", t`the same for all:`, fixed), radio("none", t`none`));
  fixed.oninput = () => { labels.querySelector("[value=one]").checked = true; summarise(); };
  const foldersOf = (row) => row.id.split("/").slice(0, -1);
  // Below the folder of a label, a folder can hold a series.
  const folderOf = (row) => (inSeries.checked && foldersOf(row).at(-2)) || row.folder;
  const labelOf = (row) => ({ folders: folderOf(row), one: fixed.value.trim() || null, none: null })[
    labels.querySelector(":checked").value];
  const seriesOf = (row) => foldersOf(row).join("/") || state.rows.find((one) => one.folder === null).id;

  const chooser = (id, words, folder) => el("label.choose", {}, el("input", {
    type: "file", id, multiple: true, webkitdirectory: folder, "data-testid": id, ...(folder ? {} : { accept: "image/*" }),
    onchange: ({ target: input }) => { choose([...input.files]); input.value = ""; },
  }), el("span", {}, words));
  const start = el("button.primary", { type: "button", "data-testid": "add-all", onclick: () => attempt(run) });
  const undo = el("button", { type: "button", hidden: true, "data-testid": "undo-adding", onclick: () => attempt(takeBack) },
    t`Undo`);
  const clear = el("button.quiet", { type: "button", hidden: true, onclick: () => attempt(forget) }, t`Clear the list`);
  const guarantees = el("button", { type: "button", hidden: true, onclick: () => { dialog.close(); review(state.target); } },
    t`Set up guarantees`);
  const dialog = el("dialog.adding", { "aria-labelledby": "adding-title", "data-testid": "adding" },
    dialogHeader(el("h2", { id: "adding-title" }, t`Add photographs`)),
    el("p", {}, el("label", { htmlFor: "adding-to" }, t`Add to`), " ", target), named,
    el("p.choosers", {}, chooser("adding-folder", t`Choose a folder`, true), chooser("adding-files", t`Choose photos`, false)),
    labels, el("p", {}, el("label.series", {}, inSeries, t`The photos of each folder are one series, such as a burst`)),
    status, progress, problem, list, el("p.actions", {}, start, undo, guarantees, clear),
    el("p.note", {}, t`This browser keeps the list until all photos are added: after a reload, you can continue.`));

  dialog.ondragover = (event) => {
    event.preventDefault();
    event.stopPropagation(); // the page behind takes nothing
    event.dataTransfer.dropEffect = "copy";
  };
  dialog.ondrop = (event) => {
    event.preventDefault();
    event.stopPropagation();
    attempt(async () => choose(await droppedFiles(event.dataTransfer)));
  };

  const rowsThat = (...wanted) => state.rows.filter((row) => wanted.includes(row.state));

  function summarise() {
    const [waiting, added, failed, twice, there] =
      ["waiting", "added", "failed", "twice", "there"].map((one) => rowsThat(one));
    const found = new Set(waiting.map(labelOf).filter((label) => label !== null));
    status.textContent = [
      state.rows.length ? "" : t`No photos are chosen yet.`,
      added.length ? t`${count(added.length)} of ${count(state.rows.length)} added` : "",
      waiting.length ? t`${count(waiting.length)} to add, ${count(found.size)} {1|label|labels}` : "",
      twice.length ? t`${count(twice.length)} chosen twice` : "",
      there.length ? t`${count(there.length)} already in the gallery` : "",
      failed.length ? t`${count(failed.length)} failed` : "",
      state.others ? t`${count(state.others)} left out: no images` : "",
    ].filter(Boolean).join(" · ");
    start.textContent = state.running ? t`Stop` : !waiting.length ? t`Try the failed ones again`
      : added.length ? t`Continue` : t`Add ${count(waiting.length)} {0|photo|photos}`;
    start.hidden = !state.running && !waiting.length && !failed.length;
    undo.hidden = state.running || !added.length;
    guarantees.hidden = state.running || waiting.length > 0 || !added.length;
    clear.hidden = state.running || !state.rows.length;
    target.disabled = name.disabled = Boolean(state.running) || added.length > 0;
    Object.assign(progress, { max: state.rows.length, value: state.rows.length - waiting.length, hidden: !state.running });
    list.replaceChildren(...[...failed, ...twice, ...there].slice(0, 50).map((row) =>
      el("li", { dir: "auto" }, t`${brief(row.id)}: ${row.problem}`)));
  }

  /** Do something with the list; an error is shown, and the list stays. */
  async function attempt(work) {
    problem.hidden = true;
    try {
      await work();
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error instanceof Problem
        ? [error.problem.title, error.problem.detail].filter(Boolean).map(said).join(". ") : String(error);
    }
    summarise();
  }

  async function choose(files) {
    const images = files.filter(isImage);
    state.others += files.length - images.length;
    const names = namesOf(images.map(pathOf));
    const rows = images.map((blob, i) => ({ blob, ...names[i], state: "waiting", problem: null, number: null, sent: false }));
    status.textContent = t`Reading ${count(images.length)} {0|photo|photos}…`;
    const seen = new Map(state.rows.map((row) => [row.content, row.id]));
    for (const row of rows) {
      row.content = await contentOf(row.blob).catch(() => null);
      const twin = row.content && seen.get(row.content);
      if (twin) Object.assign(row, { state: "twice", problem: t`the same photo as ${brief(twin)}` });
      else if (row.content) seen.set(row.content, row.id);
    }
    await store(rows);
    state.rows.push(...rows);
    summarise();
  }

  /** Let the browser keep rows that it does not have. */
  async function store(rows) {
    const kept = rows.map((row) => ({ ...row, target: state.target }));
    const numbers = await addToBatch(keptAs(gallery.name), kept).catch(() => []);
    rows.forEach((row, i) => { row.number = numbers[i] ?? null; });
  }

  const keep = ({ blob, ...row }) => row.number !== null &&
    updateRow(keptAs(gallery.name), { ...row, target: state.target }).catch(() => {});

  /** Make the new gallery, if one is wanted. */
  async function make() {
    if (target.value !== NEW) return;
    state.target = await createGallery(name, gallery.name);
    target.append(el("option", { value: name.value }, name.value));
    target.value = name.value;
    named.hidden = true;
  }

  async function run() {
    if (state.running) return state.running.abort();
    const now = (state.running = new AbortController());
    try {
      await make();
      if (!rowsThat("waiting").length) {
        for (const row of rowsThat("failed")) Object.assign(row, { state: "waiting", problem: null });
      }
      const queue = rowsThat("waiting");
      const there = await idsThere(state.target, queue.map(({ id }) => id));
      for (const row of queue) {
        if (!there.has(row.id)) continue;
        // What was sent before, but not answered, came from here.
        Object.assign(row, row.sent ? { state: "added", problem: null }
          : { state: "there", problem: t`an item of this id is in the gallery` });
        if (row.sent) state.added += 1;
        keep(row);
      }
      const left = rowsThat("waiting");
      summarise();
      await Promise.all(Array.from({ length: AT_ONCE }, () => work(left, now)));
    } finally {
      state.running = null;
      forgetLabels(state.target);
    }
    if (rowsThat("waiting", "failed").length) return;
    await forgetBatch(keptAs(gallery.name)).catch(() => {});
    for (const row of state.rows) row.number = null;
  }

  async function work(queue, stopping) {
    const { signal } = stopping;
    while (queue.length && !signal.aborted) {
      const row = queue.shift();
      const label = labelOf(row);
      try {
        const body = await imageForm(row.blob, row.id.split("/").at(-1), {
          ...(label !== null && { label }),
          ...(inSeries.checked && { metadata: JSON.stringify({ group: seriesOf(row) }) }),
        });
        const path = { gallery: state.target, item_id: row.id };
        row.sent = true;
        await keep(row); // a reload may come before the answer
        await patiently(() => askJson("/v1/galleries/{gallery}/items/{item_id}", { method: "PUT", path, body, signal }), signal);
        Object.assign(row, { state: "added", problem: null });
        state.added += 1;
      } catch (error) {
        if (signal.aborted) return;
        const { status: code } = error.problem ?? {};
        if (code === 507 || (code && code < 500)) row.sent = false; // nothing was stored
        if ([0, 401, 403, 404, 409, 429, 507].includes(code)) { // so it is for each that follows
          stopping.abort();
          keep(row);
          throw error;
        }
        Object.assign(row, { state: "failed", problem: reasonOf(error) });
      }
      keep(row);
      summarise();
    }
  }

  /** Remove the photographs again that were added. */
  async function takeBack() {
    await store(state.rows.filter(({ number }) => number === null));
    for (const row of rowsThat("added")) {
      await patiently(() => deleteItem({ name: state.target }, row.id), { aborted: false });
      Object.assign(row, { state: "waiting", sent: false });
      keep(row);
      summarise();
    }
  }

  async function forget() {
    await forgetBatch(keptAs(gallery.name));
    Object.assign(state, { rows: [], others: 0 });
  }

  openDialog(dialog, within, () => {
    state.running?.abort();
    if (state.added) changed(state.target);
  });
  state.rows = await batchOf(keptAs(gallery.name)).catch(() => []);
  state.target = state.rows.find((row) => row.target)?.target ?? gallery.name;
  if (state.target !== gallery.name) target.append(el("option", { value: state.target, selected: true }, state.target));
  summarise();
}
