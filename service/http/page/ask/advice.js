// Advice on a photograph before anything is searched with it.

import { askJson, imageForm } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { said } from "../service_texts.js";

/** What speaks against searching with an image: sentences, none where nothing does. Whatever goes
 * wrong is left to the search to tell. */
export async function adviceOn(gallery, blob, name, signal) {
  const url = `/v1/galleries/${encodeURIComponent(gallery)}/assess`;
  try {
    const body = await imageForm(blob, name);
    const { quality, query } = await askJson(url, { method: "POST", body, signal });
    const hints = quality.hints.map(({ advice }) => said(advice));
    return query.ood.flag ? [...hints, t`It is not the kind of image that this gallery knows.`] : hints;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return [];
  }
}

/** The advice, with what can be done about it. */
export function advicePanel(sentences, { anyway, edit, again }) {
  const button = (words, act, name = "button") => el(name, { type: "button", onclick: act }, words);
  const panel = el("div.advice", { "data-testid": "advice", role: "region", "aria-labelledby": "advice-title" },
    el("h2", { id: "advice-title" }, t`Another photograph would do better.`),
    el("ul", {}, sentences.map((text) => el("li", {}, text))),
    el("div.buttons", {},
      button(t`Search anyway`, anyway, "button.primary"),
      button(t`Crop or turn it`, edit),
      button(t`Take another one`, again)));
  return panel;
}
