// Labels of items are corrected: of one item, or of many at once, and taken back.

import { askJson, patiently } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { forgetLabels, labelsOf } from "../look/finding.js";
import { reasonOf } from "../problem.js";
import { brief, count } from "../words.js";

const OFFERED = 20; // labels that are offered for a part of one

const named = (label) => label === null ? t`no label` : t`“${brief(label)}”`;

/** Give an item of the gallery another label; null for none. Tried again while the service is busy.
 *
 * @param {Page.Gallery} gallery
 * @param {Page.Item} item
 * @param {string | null} label
 * @param {AbortSignal} signal */
export async function giveLabel(gallery, { id }, label, signal) {
  const path = { gallery: gallery.name, item_id: id };
  await patiently(() => askJson("/v1/galleries/{gallery}/items/{item_id}", {
    method: "PATCH", path, json: { label }, signal,
  }), signal);
}

/** A form that changes the label of items, and takes the last change back.
 * `changed(items)` is called when items have other labels.
 *
 * @param {Page.Gallery} gallery
 * @param {(items: Page.Item[]) => void} changed */
export function labelEditor(gallery, changed) {
  const leaving = new AbortController();
  const input = el("input", { type: "text", id: "new-label", maxLength: 200, autocomplete: "off", dir: "auto" });
  input.setAttribute("list", "known-labels");
  const offered = el("datalist", { id: "known-labels" });
  const button = el("button", { type: "submit", "data-testid": "give-label" });
  const undo = el("button.quiet", { type: "button", hidden: true, "data-testid": "undo-labels" }, t`Undo`);
  const done = el("p.status", { role: "status", "data-testid": "labels-done" });
  const form = el("form.labelling", { "data-testid": "label-form" },
    el("label", { htmlFor: "new-label" }, t`Label`), input, offered, button);
  const element = el("div.label-editor", {}, form, done, undo);
  let items = [];
  let working = false;
  let filled = ""; // what the form began with
  let before = new Map(); // item → its label before the last change

  const wanted = () => input.value.trim() || null;
  const others = () => items.filter(({ label }) => label !== wanted());

  function show() {
    const n = items.length;
    button.textContent = wanted() !== null
      ? (n > 1 ? t`Change ${count(n)} labels` : t`Change the label`)
      : (n > 1 ? t`Remove ${count(n)} labels` : t`Remove the label`);
    button.disabled = working || !others().length;
    undo.disabled = working;
    undo.hidden = !before.size;
  }

  /** Let the form be for these items. With `keeps`, what was typed stays. */
  function use(chosen, keeps = false) {
    items = chosen;
    const labels = new Set(items.map(({ label }) => label));
    const typed = keeps && input.value !== filled;
    filled = labels.size === 1 ? [...labels][0] ?? "" : "";
    if (!typed) input.value = filled;
    input.placeholder = labels.size > 1 ? t`${count(labels.size)} {0|label|labels}` : "";
    show();
    return element;
  }

  async function offer() {
    const known = await labelsOf(gallery.name).catch(() => []);
    const part = input.value.trim().toLowerCase(); // as it is now: an earlier call may end later
    const fit = known.filter((label) => label.toLowerCase().includes(part)).slice(0, OFFERED);
    offered.replaceChildren(...fit.map((value) => el("option", { value })));
  }

  /** Give each item its label, one after another; what fails keeps the label that it has. */
  async function change(labels, says) {
    working = true;
    show();
    const made = new Map();
    const reasons = [];
    for (const [item, label] of labels) {
      if (leaving.signal.aborted) return null;
      if (labels.size > 1) done.textContent = t`${count(made.size)} of ${count(labels.size)} labels changed`;
      try {
        await giveLabel(gallery, item, label, leaving.signal);
        made.set(item, item.label);
        item.label = label;
      } catch (error) {
        reasons.push([item, error]);
        if ([401, 403, 409, 429].includes(error.problem?.status)) break; // the others would be refused as well
      }
    }
    working = false;
    filled = input.value;
    before = made;
    forgetLabels(gallery.name);
    const [[item, error] = []] = reasons;
    done.textContent = [
      made.size && says(made), error && t`“${item.id}” could not be changed: ${reasonOf(error)}`,
    ].filter(Boolean).join(" ");
    changed([...made.keys()]);
    show();
    return made;
  }

  form.onsubmit = (event) => {
    event.preventDefault();
    const label = wanted();
    if (working || !others().length) return;
    change(new Map(others().map((item) => [item, label])), (made) => made.size > 1
      ? t`${count(made.size)} items now have ${named(label)}.`
      : t`“${[...made.keys()][0].id}” now has ${named(label)}.`);
  };
  undo.onclick = async () => {
    const taken = before;
    const made = await change(taken, ({ size }) => (
      size > 1 ? t`${count(size)} labels are as before.` : t`The label is as before.`));
    before = new Map([...taken].filter(([item]) => made && !made.has(item)));
    use(items);
  };
  input.oninput = () => { show(); offer(); };
  input.onfocus = offer;
  return { use, element, end: () => leaving.abort() };
}
