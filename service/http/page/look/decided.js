// The decisions that the service keeps, of all reviewers: seen again, and taken back.

import { askJson, filled } from "../api.js";
import { dialogHeader, el, openDialog, picture } from "../elements.js";
import { language, t } from "../language.js";
import { reasonOf } from "../problem.js";
import { brief, count, decisionSentence } from "../words.js";
import { reviewer, takeBack } from "./decisions.js";

const PAGE = 1000; // decisions asked for at once
const SHOWN = 200; // the last ones

/** @type {Record<Api.Decision["decision"], keyof typeof import("../words.js").DECISIONS>} */
const KINDS = {
  this_item: "is", that_item: "is", not_this_item: "wrong", none_of_these: "none", new: "unknown",
};

/** Open the decisions on a gallery, the last first, in a dialog `within` the page.
 *
 * @param {Page.Gallery} gallery */
export function showDecided(gallery, within) {
  const status = el("p.status", { role: "status", "data-testid": "decided-status" });
  const mine = el("input", { type: "checkbox", id: "decided-mine", onchange: () => show() });
  const list = el("ol.decided", { tabIndex: 0, "aria-labelledby": "decided-title" });
  const name = reviewer.get();
  const dialog = el("dialog.decisions", { "aria-labelledby": "decided-title", "data-testid": "decided-list" },
    dialogHeader(el("h2", { id: "decided-title" }, t`Decisions`)),
    name ? el("label", {}, mine, ` ${t`Only those of ${brief(name)}`}`) : "", status, list);
  /** @type {Api.Decision[]} */
  let all = [];

  async function fetchAll() {
    for (let after = 0; after !== null;) {
      const { decisions, next_after: next } = await askJson("/v1/galleries/{gallery}/feedback", {
        path: { gallery: gallery.name }, query: { after, limit: PAGE },
      });
      all.push(...decisions);
      after = next;
    }
    all.reverse();
  }

  function show() {
    const wanted = all.filter((one) => !mine.checked || one.reviewer === name);
    list.replaceChildren(...wanted.slice(0, SHOWN).map((one) => row(gallery, one, status)));
    status.textContent = wanted.length > SHOWN
      ? t`The last ${count(SHOWN)} of ${count(wanted.length)} decisions.` : t`${count(wanted.length)} {0|decision|decisions}.`;
  }

  openDialog(dialog, within);
  fetchAll().then(show, (error) => { status.textContent = reasonOf(error); });
}

/** @param {Page.Gallery} gallery
 * @param {Api.Decision} decision */
function row(gallery, decision, status) {
  const { number, item_id: id, label, reviewer: by, decided_at: at, comment } = decision;
  const path = { gallery: gallery.name, item_id: id ?? "" };
  const url = filled("/v1/galleries/{gallery}/items/{item_id}/thumbnail", { path });
  const sentence = decisionSentence({ kind: KINDS[decision.decision], item: { id, label } });
  const when = new Date(at).toLocaleString(language, { dateStyle: "medium", timeStyle: "short" });
  const button = el("button", { type: "button", "data-testid": "take-back" }, t`Undo it`);
  const undone = el("span.note", { hidden: decision.undone_at === null }, t`Taken back.`);
  button.hidden = decision.undone_at !== null;
  button.onclick = async () => {
    button.disabled = true;
    try {
      Object.assign(decision, await takeBack(gallery.name, number));
      button.replaceWith(undone);
      undone.hidden = false;
      status.textContent = t`Taken back.`;
    } catch (error) {
      button.disabled = false;
      status.textContent = reasonOf(error);
    }
  };
  return el("li", { "data-testid": "decided-row" }, id === null ? el("span") : picture(url, "", true),
    el("div", {}, el("p", { dir: "auto" }, sentence),
      el("p.note", { dir: "auto" }, [when, by && brief(by), comment && brief(comment)].filter(Boolean).join(" · "))),
    button.hidden ? undone : button);
}
