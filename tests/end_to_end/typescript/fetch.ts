// The same front end with another generator's types; prints what it saw as JSON.
import { readFile } from "node:fs/promises";

import createClient from "openapi-fetch";

import type { components, paths } from "./schema.js";

const [baseUrl, photograph] = process.argv.slice(2);
if (baseUrl === undefined || photograph === undefined) throw new Error("wanted: URL FILE");
const client = createClient<paths>({ baseUrl });

const path = { gallery: "digits" };
const image_base64 = (await readFile(photograph)).toString("base64");

const json = await client.POST("/v1/galleries/{gallery}/search/json", {
  params: { path },
  body: { image_base64, filter: { label: "7" }, limit: 2 },
});
const form = await client.POST("/v1/galleries/{gallery}/search", {
  params: { path },
  body: { image: image_base64, filter: '{"label": "7"}', limit: 2 },
  bodySerializer({ image, ...options }) {
    const form = new FormData();
    form.set("image", new Blob([Buffer.from(image, "base64")]), "photograph.png");
    for (const [name, value] of Object.entries(options)) form.set(name, String(value));
    return form;
  },
});
const listed = await client.GET("/v1/galleries/{gallery}/items", {
  params: { path, query: { limit: 2, filter: '{"label": "7"}' } },
});
const refused = await client.POST("/v1/galleries/{gallery}/search/json", {
  params: { path },
  body: { image_base64: "AAAA" },
});
const problem: components["schemas"]["Problem"] | undefined = refused.error;

console.log(
  JSON.stringify({
    json: json.data?.results.map((result) => result.id),
    form: form.data?.results.map((result) => result.id),
    labels: json.data?.results.map((result) => result.label),
    listed: listed.data?.items.map((item) => item.label),
    problem,
  }),
);
