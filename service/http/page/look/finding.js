// Other items than those of the answer, by their labels and ids.

import { askJson } from "../api.js";

const MOST_PAGES = 10; // of a thousand labels: a part of a label is looked for among these
const MOST_BYTES = 1400; // of a filter
const LAST = "\u{10ffff}"; // no character comes after it

const FRESH = 60_000; // ms for which labels are known: others add some, too

const known = new Map(); // gallery → its labels by name, and since when they are known

/** Ask anew for the labels of a gallery, to which there are more. */
export const forgetLabels = (gallery) => known.delete(gallery);

/** All labels of a gallery by name, or the first ten thousand. */
export async function labelsOf(gallery) {
  const before = known.get(gallery);
  if (before && performance.now() - before.since < FRESH) return before.labels;
  const labels = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const answer = await askJson("/v1/galleries/{gallery}/labels", { path: { gallery }, query: { limit: 1000, after } });
    labels.push(...answer.labels);
    after = answer.next_after;
    if (after === null) break;
  }
  known.set(gallery, { labels, since: performance.now() });
  return labels;
}

const sizeOf = (value) => new TextEncoder().encode(JSON.stringify(value)).length;

/** A filter for items whose label has `text` in it, in any case, or whose id begins with it. */
export async function labelsLike(gallery, text) {
  const part = text.toLowerCase();
  const ids = { id: { gte: text, lt: text + LAST } };
  const labels = [];
  let bytes = sizeOf(ids);
  for (const label of await labelsOf(gallery)) {
    if (!label.toLowerCase().includes(part)) continue;
    bytes += sizeOf(label) + 2;
    if (bytes > MOST_BYTES) break;
    labels.push(label);
  }
  return labels.length ? { or: [ids, { label: { in: labels } }] } : ids;
}
