// Bundles the element with the scripts, the styles and the document of the service's page, which
// are its only source. What is opened later (crop, batch, …) is loaded later.

import { rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

await rm(at("dist"), { recursive: true, force: true });
await build({
  entryPoints: [at("vouch-search.js")],
  outdir: at("dist"),
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minifySyntax: true,
  minifyWhitespace: true,
  minifyIdentifiers: true,
  charset: "utf8",
  loader: { ".html": "text", ".css": "text" },
});
