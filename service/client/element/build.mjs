// Bundles the element with the scripts, the styles and the document of the service's page, which
// are its only source. What is opened later (crop, batch, …) is loaded later.

import { readFile, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));

/** Styles and the document's body as text, without comments and indentation. */
const smallTexts = {
  name: "small-texts",
  setup({ onLoad }) {
    onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const styles = await readFile(path, "utf8");
      const { code } = await transform(styles, { loader: "css", minify: true });
      return { contents: code, loader: "text" };
    });
    onLoad({ filter: /\.html$/ }, async ({ path }) => {
      const [body] = (await readFile(path, "utf8")).match(/<body[^]*/);
      return { contents: body.replace(/\n\s+</g, "\n<"), loader: "text" };
    });
  },
};

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
  plugins: [smallTexts],
});
