// What a front end does with the generated client; prints what it saw as JSON.
import { readFile } from "node:fs/promises";

import { client } from "./client/client.gen.js";
import {
  assess,
  getSimilar,
  listItems,
  search,
  searchBatch,
  searchJson,
  searchNext,
  searchRaw,
} from "./client/index.js";
import type { Problem, SearchAnswer } from "./client/index.js";

const [baseUrl, photograph] = process.argv.slice(2);
if (baseUrl === undefined || photograph === undefined) throw new Error("wanted: URL FILE");
client.setConfig({ baseUrl });

const path = { gallery: "digits" };
const bytes = await readFile(photograph);
const image = new Blob([new Uint8Array(bytes)], { type: "image/png" });

function answered<T>(result: { data?: T; error?: unknown }): T {
  if (result.data === undefined) throw new Error(JSON.stringify(result.error));
  return result.data;
}

// A verdict is one of a closed set: a switch that forgets one does not compile.
function inWords(answer: SearchAnswer): string {
  switch (answer.verdict) {
    case "match":
      return `it is ${answer.results[0]?.label ?? "?"}`;
    case "ambiguous":
      return "it may be several things";
    case "no_match":
      return "it is not here";
    case "out_of_distribution":
      return "it is something else";
    case "not_calibrated":
      return "nobody knows how sure this is";
  }
}

const found = answered(await search({ path, body: { image, limit: 3 } }));
const raw = answered(await searchRaw({ path, body: image, query: { limit: 3 } }));
const json = answered(
  await searchJson({ path, body: { image_base64: bytes.toString("base64"), limit: 3 } }),
);
const cursor: string | null = found.next_cursor;
const next = cursor === null ? null : answered(await searchNext({ path, query: { cursor } }));
const batch = answered(
  await searchBatch({ path, body: { images: [image, new Blob(["no image"])], limit: 1 } }),
);
const assessed = answered(await assess({ path, body: { image } }));
const listed = answered(await listItems({ path, query: { limit: 2 } }));
const id: string = listed.items[0]?.id ?? "";
const similar = answered(await getSimilar({ path: { ...path, item_id: id }, query: { limit: 2 } }));

const refused = await search({ path, body: { image: new Blob([]) } });
const problem: Problem | undefined = refused.error;

// Typed so that what is no file does not compile.
export const wrong = [
  // @ts-expect-error: a name of a file is not a file
  () => search({ path, body: { image: "photo.png" } }),
  // @ts-expect-error: nor is it one among others
  () => searchBatch({ path, body: { images: ["photo.png"] } }),
  // @ts-expect-error: nor a body
  () => searchRaw({ path, body: "photo.png" }),
  // @ts-expect-error: there is no such choice
  () => search({ path, body: { image, on_uncertain: "panic" } }),
  // @ts-expect-error: ids are strings
  () => getSimilar({ path: { ...path, item_id: 7 } }),
];

console.log(
  JSON.stringify({
    found,
    words: inWords(found),
    raw: raw.results,
    json: json.results,
    next: next?.results,
    batch: batch.items.map((item) => item.problem?.code ?? item.answer?.results[0]?.id),
    assessed: assessed.query,
    listed: listed.items.map((item) => item.id),
    similar: similar.results.map((result) => result.id),
    problem,
    status: refused.response?.status,
  }),
);
