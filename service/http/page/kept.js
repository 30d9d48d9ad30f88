// What this browser keeps of a visitor's work over a reload: batches with their photographs, and the
// last single photographs. Where a browser keeps nothing, such as in a frame, each call fails softly.

import { address, filled } from "./api.js";

const DATABASE = "vouch";
const LAST = 20; // single photographs
const STORES = { rows: "number", photos: "number", queries: "id" };

let opened = null;

/** The database; rejects where the browser has none. */
function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      for (const [name, keyPath] of Object.entries(STORES)) {
        const store = request.result.createObjectStore(name, { keyPath, autoIncrement: keyPath === "number" });
        store.createIndex("gallery", "gallery");
      }
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => { request.result.close(); opened = null; };
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** The result of a request. */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Run `work` with the stores in one transaction, and return what it returns once that is on the disk. */
async function transaction(mode, work) {
  const running = (await database()).transaction(Object.keys(STORES), mode);
  const ended = new Promise((resolve, reject) => {
    running.oncomplete = resolve;
    running.onabort = () => reject(running.error);
  });
  const [result] = await Promise.all([
    work(...Object.keys(STORES).map((name) => running.objectStore(name))), ended,
  ]);
  return result;
}

/** A gallery of this service, or other work of that name: other services may be at the same origin. */
const idOf = (gallery) => address(filled("/v1/galleries/{gallery}", { path: { gallery } }));

/** Add photographs to the batch of a gallery: [{ blob, … }]. Returns a number for each. */
export const addToBatch = (gallery, files) => transaction("readwrite", (rows, photos) =>
  Promise.all(files.map(async ({ blob, number: _, ...row }) => {
    const number = await done(rows.add({ ...row, gallery: idOf(gallery) }));
    await done(photos.add({ number, gallery: idOf(gallery), blob }));
    return number;
  })));

/** Keep what has come of a photograph of a batch; rejects where the batch was cleared, in another tab. */
export const updateRow = (gallery, row) => transaction("readwrite", async (rows) => {
  if (await done(rows.getKey(row.number)) === undefined) throw new Error("The batch was cleared.");
  await done(rows.put({ ...row, gallery: idOf(gallery) }));
});

/** The batch of a gallery, with the photographs, in their order. */
export const batchOf = (gallery) => transaction("readonly", async (rows, photos) => {
  const both = [rows, photos].map((store) => done(store.index("gallery").getAll(idOf(gallery))));
  const [found, blobs] = await Promise.all(both);
  const byNumber = new Map(blobs.map(({ number, blob }) => [number, blob]));
  return found.map((row) => ({ ...row, blob: byNumber.get(row.number) })).filter(({ blob }) => blob);
});

/** How many photographs the batch of a gallery has. */
export const sizeOfBatch = (gallery) => transaction("readonly", (rows, photos) =>
  done(photos.index("gallery").count(idOf(gallery))));

/** Forget the batch of a gallery. */
export const forgetBatch = (gallery) => transaction("readwrite", (...stores) =>
  Promise.all(stores.slice(0, 2).map(async (store) => {
    const keys = await done(store.index("gallery").getAllKeys(idOf(gallery)));
    await Promise.all(keys.map((key) => done(store.delete(key))));
  })));

/** Keep a single photograph by the id of its query, and forget the oldest. */
export const keepQuery = (id, { name, blob }) => transaction("readwrite", async (rows, photos, queries) => {
  await done(queries.put({ id, name, blob, at: Date.now() }));
  const all = await done(queries.getAll());
  const old = all.sort((a, b) => b.at - a.at).slice(LAST);
  await Promise.all(old.map((one) => done(queries.delete(one.id))));
});

/** A photograph that was kept; undefined where it is no longer there. */
export const queryOf = (id) => transaction("readonly", (rows, photos, queries) => done(queries.get(id)));
