// Many photographs at once: a table that fills while it works, and one error budget over all. The
// browser keeps it over a reload, until it is cleared.

import { patiently, searchWith } from "../api.js";
import { addToBatch, batchOf, forgetBatch, updateRow } from "../kept.js";
import { decide, resumed } from "../look/decisions.js";
import { reasonOf } from "../problem.js";
import { MOST, batchView } from "./view.js";

const AT_ONCE = 3; // searches
const KEPT_AT_ONCE = 50; // photographs in a transaction, which a reload may end

/** What two choices of the same file have in common. */
const fileOf = ({ name, blob }) => `${name} ${blob.size} ${blob.lastModified}`;

/** The batch of `gallery`, shown in `place`. `refused` receives a problem that concerns all searches,
 * such as a missing key; dialogs open `within` a part of the page; `cleared` is called when a person
 * clears it. `add(files)` adds [{ name, blob }] and searches with them, `restore()` brings back what
 * the browser keeps of it, `run()` continues with it, `stop()` ends it. `follow({ line, filtered })` says which
 * line the visitor drew, null for the gallery's, and whether a filter is chosen.
 *
 * @param {Page.Gallery} gallery */
export function openBatch(gallery, place, { refused, within, cleared }) {
  const entries = [];
  let running = null;
  let writing = 0; // entries that are on their way to the disk
  let losable = false; // whether a reload would lose photographs
  let over = false;
  const view = batchView(entries, gallery, place, {
    within, refused, run, retry, stop: () => running?.abort(), clear, keep,
  });
  const warn = (event) => { if (losable) event.preventDefault(); };
  addEventListener("beforeunload", warn);

  function enter(rows) {
    for (const row of rows) {
      const entry = { ...row, preview: URL.createObjectURL(row.blob) };
      if (row.decision) resumed(entry, gallery, row.decision);
      entries.push(entry);
    }
    view.added();
  }

  async function add(files, nOthers) {
    const known = new Set(entries.map(fileOf));
    const wanted = files.filter((file) => !known.has(fileOf(file)) && known.add(fileOf(file)));
    const given = wanted.slice(0, MOST - entries.length);
    view.left({ tooMany: wanted.length - given.length, others: nOthers, twice: files.length - wanted.length });
    navigator.storage?.persist?.().catch(() => {}); // or a browser whose disk is full may forget it
    losable = true;
    view.reading(entries.length + given.length);
    const blank = { answer: null, problem: null, decision: null, accepted: null };
    let unkept = false;
    for (let at = 0; at < given.length; at += KEPT_AT_ONCE) {
      const rows = given.slice(at, at + KEPT_AT_ONCE).map((file) => ({ ...blank, ...file }));
      const numbers = await addToBatch(gallery.name, rows).catch(() => null);
      if (over) return;
      unkept ||= !numbers;
      if (unkept) view.unkept();
      enter(rows.map((row, i) => ({ ...row, number: numbers?.[i] ?? null })));
    }
    losable = unkept;
    run();
  }

  async function restore() {
    enter(await batchOf(gallery.name));
  }

  /** Keep what has come of an entry; answers once it is kept. */
  async function keep(entry) {
    if (entry.number === null) return;
    const { number, name, answer, problem, accepted, decision: made } = entry;
    const decision = made && (({ kind, item, reviewer, at, state, number: n, problem: why }) =>
      ({ kind, item, reviewer, at, state, number: n, problem: why }))(made);
    view.writing(writing += 1);
    await updateRow(gallery.name, { number, name, answer, problem, accepted, decision })
      .catch(view.unkept).finally(() => view.writing(writing -= 1));
  }

  async function work(queue, { signal }) {
    while (queue.length && !signal.aborted) {
      const entry = queue.shift();
      try {
        entry.answer = await patiently(() =>
          searchWith(gallery.name, entry.blob, entry.name.split("/").at(-1), {}, signal), signal);
        entry.problem = null;
      } catch (error) {
        if (signal.aborted) return;
        if ([0, 401, 429].includes(error.problem?.status)) { // of each that follows, too
          running.abort();
          return refused(error);
        }
        entry.problem = reasonOf(error);
      }
      view.changed();
      await keep(entry); // so that a reload repeats few searches
    }
  }

  async function run() {
    running?.abort();
    const now = (running = new AbortController());
    const queue = entries.filter(({ answer, problem }) => !answer && !problem);
    view.started();
    await Promise.all(Array.from({ length: AT_ONCE }, () => work(queue, now)));
    if (now === running) view.ended();
  }

  /** Search again where a search failed, and send the decisions that were not taken. */
  function retry() {
    for (const entry of entries) {
      if (entry.problem) Object.assign(entry, { problem: null });
      else if (entry.decision?.state === "failed") decide(entry, gallery, entry.decision.kind, entry.decision.item);
    }
    run();
  }

  function stop() {
    over = true;
    running?.abort();
    removeEventListener("beforeunload", warn);
    view.end();
    for (const { preview } of entries) URL.revokeObjectURL(preview);
  }

  async function clear() {
    stop();
    await forgetBatch(gallery.name).catch(() => {});
    place.replaceChildren();
    cleared();
  }

  return { gallery, add, restore, run, stop, follow: view.follow };
}
