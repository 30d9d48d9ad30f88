// Other items than those of the answer, by their labels and ids.

import { askJson } from "../api.js";

const MOST_PAGES = 10; // of a thousand labels: a part of a label is looked for among these
const MOST_BYTES = 1200; // of a filter

const known = new Map(); // gallery → its labels by name

async function labelsOf(gallery) {
  if (known.has(gallery)) return known.get(gallery);
  const labels = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const query = new URLSearchParams({ limit: 1000, ...(after !== null && { after }) });
    const url = `/v1/galleries/${encodeURIComponent(gallery)}/labels?${query}`;
    const answer = await askJson(url);
    labels.push(...answer.labels);
    after = answer.next_after;
    if (after === null) break;
  }
  known.set(gallery, labels);
  return labels;
}

/** A filter for items whose label has `text` in it, in any case, or whose id it is. */
export async function labelsLike(gallery, text) {
  const part = text.toLowerCase();
  const labels = [];
  let bytes = 0;
  for (const label of await labelsOf(gallery)) {
    if (!label.toLowerCase().includes(part)) continue;
    bytes += new TextEncoder().encode(JSON.stringify(label)).length + 2;
    if (bytes > MOST_BYTES) break;
    labels.push(label);
  }
  const wanted = [{ id: text }, ...(labels.length ? [{ label: { in: labels } }] : [])];
  return wanted.length > 1 ? { or: wanted } : wanted[0];
}
