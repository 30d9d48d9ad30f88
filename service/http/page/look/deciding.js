// The bar with which a person decides, and the two small forms behind it.

import { askJson, imageForm, mayWrite, searchFor } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { onDecision, reviewer } from "./decisions.js";
import { decisionSentence } from "../words.js";
import { forgetLabels, labelsLike } from "./finding.js";

const KINDS = {
  is: () => t`It is this one`,
  wrong: () => t`Not this one`,
  none: () => t`None of these`,
};
const KEYS = { is: "y", wrong: "n", none: "0", undo: "u", find: "/", add: "a" };

const key = (name) => el("kbd", { "aria-hidden": "true" }, KEYS[name]);

/** The bar. `act` carries out a decision; `list` shows other items, where what `asked` returned says
 * that they are still wanted; `added` continues from a new one. */
export function decidingBar({ act, gallery, view, list, tell, added, asked }) {
  const decision = (name) => el("button", {
    // The second click of two would decide on the photograph that follows.
    type: "button", onclick: ({ detail }) => { if (detail < 2) act(name); }, "data-testid": `decide-${name}`,
    "aria-keyshortcuts": KEYS[name],
  }, KINDS[name](), key(name));
  const yes = decision("is");
  const opens = (words, name, form) => el("button", {
    type: "button", "aria-keyshortcuts": KEYS[name], onclick: form,
  }, words, key(name));
  const adds = opens(t`New…`, "add", () => openAdd());
  let may = true;
  /** Whether the query is a text, which cannot become an item. */
  const isText = () => Boolean(view.entry.text);
  const fit = () => { adds.hidden = !may || isText(); };
  mayWrite().then((it) => { may = it; fit(); });
  const slot = el("div.form-slot");
  const forms = {
    find: () => findForm({ gallery, view, list, tell, asked }),
    add: () => addForm({ gallery, view, added }),
  };
  const name = el("input", {
    type: "text", id: "reviewer", value: reviewer.get(), maxLength: 100, autocomplete: "name",
    oninput: () => reviewer.set(name.value),
    onkeydown: (event) => {
      if (event.key !== "Enter" || !reviewer.get()) return;
      event.preventDefault();
      const decision = pending;
      pending = null;
      yes.focus();
      if (decision) act(decision);
    },
  });
  let pending = null; // a decision that waits for the name of its reviewer
  const said = el("p.note", { "data-testid": "decided" });

  /** Open the form of a new item, which is a decision, too. */
  function openAdd() {
    if (isText()) return;
    if (reviewer.get()) return toggle(forms.add());
    name.focus();
    tell(t`Enter your name first: each decision is stored with it.`);
  }

  function toggle(form) {
    slot.replaceChildren(form);
    form.querySelector("input").focus();
  }

  function show(item) {
    slot.replaceChildren();
    fit();
    const { decision: before } = view.entry;
    said.textContent = before ? t`Decided so far: ${decisionSentence(before)}` : "";
    yes.classList.toggle("said", before?.kind === "is" && before.item.id === item?.id);
  }

  const end = onDecision(({ state, entry, problem }) => {
    if (state === "failed") tell(t`The decision on ${entry.name} was not taken: ${problem}`);
  });
  const element = el("div.deciding", { role: "group", "aria-label": t`Your decision` },
    el("div.buttons", {}, yes, decision("wrong"), decision("none"),
      opens(t`Another item…`, "find", () => toggle(forms.find())),
      adds,
      el("button.quiet", { type: "button", onclick: () => act("undo"), "data-testid": "undo" },
        t`Undo`, key("undo"))),
    slot, said,
    el("p.who", {}, el("label", { htmlFor: "reviewer" }, t`Decided by`), name,
      el("span.note", {}, gallery.keeps
        ? t`Decisions are sent to the service, with this name.`
        : gallery.stores ? t`Your key may not send decisions: they stay on this page.`
        : t`The service does not store decisions on this gallery: they stay on this page.`)));
  return {
    element, show, end, focus: () => yes.focus(),
    askName: (decision) => { pending = decision; name.focus(); },
    find: () => toggle(forms.find()), add: openAdd,
  };
}

/** Look for items by a part of their label, or by how their id begins. */
function findForm({ gallery, view, list, tell, asked }) {
  const input = el("input", { type: "search", id: "find-item", required: true, maxLength: 100 });
  const submit = async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    const wanted = asked();
    try {
      const filter = JSON.stringify(await labelsLike(gallery.name, text));
      const { results: items } = await searchFor(gallery.name, view.entry, { filter, limit: 50 });
      if (!wanted()) return;
      if (items.length) {
        list(items);
        tell(t`${items.length} items, most similar first.`);
      } else {
        tell(t`No item has “${text}” in its label, or an id that begins with it.`);
      }
    } catch (error) {
      tell(reasonOf(error));
    }
  };
  return el("form.small", { onsubmit: submit, "data-testid": "find-form" },
    el("label", { htmlFor: "find-item" }, t`Part of a label, or how an id begins`), input,
    el("button", { type: "submit" }, t`Find`));
}

/** Put the photograph into the gallery. An id that is taken is refused: it would be replaced. */
function addForm({ gallery, view, added }) {
  const { entry } = view;
  const { blob, name } = entry;
  const proposed = name.replace(/\.\w+$/, "").replace(/[^\w.-]+/g, "-").slice(0, 100);
  const id = el("input", { type: "text", id: "new-id", required: true, maxLength: 1024, value: proposed });
  const label = el("input", { type: "text", id: "new-label", maxLength: 200 });
  const problem = el("p.note", { role: "alert" });
  const button = el("button", { type: "submit" }, t`Add to the gallery`);

  async function add() {
    const item = { id: id.value, label: label.value.trim() || null };
    const path = { gallery: gallery.name, item_id: item.id };
    const taken = await askJson("/v1/galleries/{gallery}/items/{item_id}", { path }).then(() => true, (error) => {
      if (error.problem?.status === 404) return false;
      problem.textContent = reasonOf(error);
      return null;
    });
    if (taken) problem.textContent = t`There is an item “${item.id}” already. Give it another id.`;
    if (taken !== false) return;
    try {
      const body = await imageForm(blob, name, item.label ? { label: item.label } : {});
      await askJson("/v1/galleries/{gallery}/items/{item_id}", { method: "PUT", path, body });
      forgetLabels(gallery.name);
      added(entry, item);
    } catch (error) {
      problem.textContent = reasonOf(error);
    }
  }

  const submit = async (event) => {
    event.preventDefault();
    if (button.ariaDisabled) return;
    button.ariaDisabled = "true"; // disabled outright, it would lose the focus
    await add();
    button.ariaDisabled = null;
  };
  return el("form.small", { onsubmit: submit, "data-testid": "add-form" },
    el("label", { htmlFor: "new-id" }, t`Id`), id,
    el("label", { htmlFor: "new-label" }, t`Label, if it has one`), label,
    button, problem);
}
