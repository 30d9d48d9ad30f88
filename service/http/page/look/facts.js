// What is known of an item: its numbers, all its metadata, and where its record is.

import { address } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { fixed, isNumber, percent } from "../words.js";

/** The metadata of an item as rows; what is neither text nor a number stands as JSON.
 *
 * @param {Page.Item} item */
export function facts(item, withholds) {
  const row = (name, value) => [el("dt", { dir: "auto" }, name), el("dd", { dir: "auto" }, value)];
  const probability = withholds ? null : item.match_probability ?? null;
  return el("dl.facts-list", { "data-testid": "facts" },
    row(t`Id`, item.id),
    item.label === null ? "" : row(t`Label`, item.label),
    probability === null ? "" : row(t`True match`, percent(probability)),
    isNumber(item.similarity) ? row(t`Similarity`, fixed(item.similarity, 3)) : "",
    isNumber(item.rank_stability) ? row(t`Rank stability`, percent(item.rank_stability)) : "",
    Object.entries(item.metadata ?? {}).map(([name, value]) => row(name, textOf(value))));
}

const textOf = (value) => typeof value === "string" ? value : JSON.stringify(value);

/** The address of an item's record: a template in which {id}, {label} and {key} of the metadata
 * stand for these. null where there is no template, or the item lacks what it names.
 *
 * @param {string | null} template
 * @param {Page.Item} item */
export function recordUrl(template, item) {
  if (!template) return null;
  let whole = true;
  const url = template.replace(/\{([^{}]+)\}/g, (_, name) => {
    const value = name === "id" || name === "label" ? item[name] : item.metadata?.[name];
    const plain = ["string", "number"].includes(typeof value);
    whole &&= plain;
    return plain ? encodeURIComponent(value) : "";
  });
  return whole ? url : null;
}

/** Where a picture of the item lies that is larger than its preview; null where none is known.
 * The page may show what lies with the service, or at origins that the service names.
 *
 * @param {Page.Item} item
 * @param {string[]} origins */
export function originalUrl(item, origins) {
  const given = item.metadata?.image_url;
  if (typeof given !== "string") return null;
  const own = address("/");
  const url = URL.canParse(given, own) ? new URL(given, own) : null;
  return url && [new URL(own).origin, ...origins].includes(url.origin) ? url.href : null;
}
