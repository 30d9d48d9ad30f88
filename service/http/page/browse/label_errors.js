// Possible label errors: items whose neighbours have another label, to be changed or kept.

import { mayWrite } from "../api.js";
import { el, picture, pressTwice } from "../elements.js";
import { t } from "../language.js";
import { forgetLabels } from "../look/finding.js";
import { reasonOf } from "../problem.js";
import { brief, count as number, percent } from "../words.js";
import { focusAfter, keptAsIs, openCheck } from "./checking.js";
import { giveLabel } from "./labels.js";

const NEIGHBOURS = 5; // that are shown

/** Open the possible label errors of a gallery in a dialog `within` the page, which calls `closed` at its end.
 *
 * @param {Page.Gallery} gallery */
export async function open(gallery, within, closed) {
  const may = await mayWrite();
  const kept = keptAsIs(gallery, "label-errors");
  const list = el("ul.plain");
  const takers = new WeakMap(); // card → takes its suggestion
  let signal = null;

  const undecided = () => [...list.querySelectorAll(".suspect:not([data-decided])")];
  const all = el("button.quiet", { type: "button", hidden: !may, "data-testid": "take-all" });
  /** Change all open cards, one after another, until one fails. */
  pressTwice(all, t`Press again to change all`, async () => {
    all.disabled = true;
    for (const one of undecided()) {
      if (signal.aborted || !(await takers.get(one)())) break;
    }
    all.disabled = false;
    count();
  });
  const count = () => {
    all.classList.replace("danger", "quiet");
    all.textContent = t`Change all ${number(undecided().length)} to the suggested labels`;
    all.hidden = !may || undecided().length < 2;
  };

  /** @param {Api.PossibleLabelError} found */
  function card({ item, suggested_label: suggested, confidence, neighbours }) {
    const key = JSON.stringify([item.id, item.label, suggested]);
    if (kept.has(key)) return null;
    const done = el("p.status", { role: "status", "data-testid": "label-error-done" });
    const label = el("b", { dir: "auto" }, item.label);
    const button = (name, words, act) => el("button", { type: "button", "data-testid": name, onclick: act }, words);
    const give = async (name) => {
      change.disabled = keep.disabled = undo.disabled = true;
      try {
        await giveLabel(gallery, item, name, signal);
        forgetLabels(gallery.name);
        label.textContent = name;
        return true;
      } catch (error) {
        done.textContent = reasonOf(error);
        return false;
      } finally {
        change.disabled = keep.disabled = undo.disabled = false;
      }
    };
    const decided = (words, takeBack, goesOn = true) => {
      done.textContent = words;
      undo.onclick = async () => {
        if (!(await takeBack())) return;
        show(false);
        done.textContent = "";
        change.focus();
      };
      show(true);
      if (goesOn) focusAfter(element);
    };
    const take = async (goesOn = false) => {
      const isGiven = await give(suggested);
      if (isGiven) decided(t`Changed.`, () => give(item.label), goesOn);
      return isGiven;
    };
    const change = button("take-suggestion", t`Change to “${brief(suggested)}”`, () => take(true));
    const keep = button("keep-label", t`Keep “${brief(item.label)}”`, () => {
      kept.add(key);
      decided(t`Kept. This browser does not list it again.`, () => { kept.remove(key); return true; });
    });
    const undo = button("undo-decision", t`Undo`);
    const show = (isDecided) => {
      change.hidden = isDecided || !may;
      keep.hidden = isDecided;
      undo.hidden = !isDecided;
      if (isDecided) element.dataset.decided = "yes";
      else delete element.dataset.decided;
      count();
    };
    const element = el("li.suspect", { "data-testid": "label-error" },
      el("figure", {}, picture(item.preview_url ?? item.thumbnail_url, ""),
        el("figcaption", {}, label, el("span.id", { dir: "auto", title: item.id }, item.id))),
      el("div", {},
        el("p", {}, t`Neighbours with “${brief(suggested)}”: ${percent(confidence)}`),
        el("div.neighbours-row", {}, neighbours.slice(0, NEIGHBOURS).map((one) => el("figure", { title: one.id },
          picture(one.thumbnail_url, "", true), el("figcaption", { dir: "auto" }, brief(one.label))))),
        el("p.actions", {}, change, keep, undo), done));
    takers.set(element, take);
    show(false);
    return element;
  }

  openCheck(gallery, within, {
    closed,
    name: "label-errors", operation: "/v1/galleries/{gallery}/label-errors", title: t`Possible label errors`, order: "confidence", list,
    note: [
      t`Items whose most similar items have another label. Copies of a photo have no vote.`,
      may ? "" : t`A key that may write is needed to change labels.`,
    ].join(" "),
    option: {
      name: "confidence", words: t`List an item if its neighbours agree on another label by at least`, chosen: 0.8,
      choices: [0.95, 0.8, 0.6].map((value) => [value, percent(value)]),
    },
    begin: (running) => {
      signal = running;
      count();
    },
    found: (one) => {
      const made = card(one);
      if (made) list.append(made);
      count();
    },
    n: () => undecided().length,
    tools: [all],
  });
}
