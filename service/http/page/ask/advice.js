// Advice on a photograph before anything is searched with it.

import { askJson, imageForm } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { said } from "../service_texts.js";

/** What makes a photograph hard to match, whatever it shows. */
const ASKED_ABOUT = ["too_small", "too_dark", "flat", "blurred", "degraded"];

const REFUSED = [400, 413, 415, 422]; // a file that the search would refuse, too

/** Sentences on the quality of an image that make it hard to match; none where it is good, of whatever
 * kind it is: that is part of the answer. A file that is refused throws; any other failure is left to the
 * search to report. */
export async function adviceOn(gallery, blob, name, signal) {
  try {
    const body = await imageForm(blob, name);
    const { quality } = await askJson("/v1/galleries/{gallery}/assess", { method: "POST", path: { gallery }, body, signal });
    return quality.hints.filter(({ code }) => ASKED_ABOUT.includes(code)).map(({ advice }) => said(advice));
  } catch (error) {
    if (error.name === "AbortError" || REFUSED.includes(error.problem?.status)) throw error;
    return [];
  }
}

/** The advice, with what can be done about it. */
export function advicePanel(sentences, { anyway, edit, again }) {
  const button = (words, act, name = "button") => el(name, { type: "button", onclick: act }, words);
  const panel = el("div.advice", { "data-testid": "advice", role: "region", "aria-labelledby": "advice-title" },
    el("h2", { id: "advice-title" }, t`This photo may be hard to match`),
    el("ul", {}, sentences.map((text) => el("li", {}, text))),
    el("div.buttons", {},
      button(t`Search anyway`, anyway, "button.primary"),
      button(t`Crop & rotate`, edit),
      button(t`Choose another photo`, again)));
  return panel;
}
