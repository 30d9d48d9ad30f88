// Looking closely: one item beside the question at a time, and the decision about it.

import { verdictOf } from "../answer.js";
import { askJson } from "../api.js";
import { dialogHeader, el, openDialog, pressOnce, pressTwice } from "../elements.js";
import { t } from "../language.js";
import { reasonOf } from "../problem.js";
import { brief, decisionSentence } from "../words.js";
import { decidingBar } from "./deciding.js";
import { decide, reviewer, undo } from "./decisions.js";
import { facts, originalUrl, recordUrl } from "./facts.js";
import { STEP, panes } from "./panes.js";

export { onDecision } from "./decisions.js";

const PAN = 0.12; // of a pane, by one press of an arrow key

const MODES = { beside: () => t`Side by side`, flicker: () => t`Blink`, overlay: () => t`Overlay` };

/** Look at the results of `entry`, from the one at `place` on. An entry is a photograph with its
 * `answer`, `blob`, `name` and the `decision` on it.
 * `next(entry)` gives the entry to go on with after a decision, or a promise of it, or null: the dialog,
 * which opens `within` a part of the page, closes. `progress()` says how far one is; `putBack`
 * receives the entry that was left undecided for one whose decision was undone; `remove(entry)` deletes
 * what the service keeps of it.
 *
 * @param {Page.Entry} entry
 * @param {Page.Gallery} gallery
 * @param {{ place?: number, items?: Page.Item[] } & Record<string, any>} options */
export function look(entry, gallery, options = {}) {
  const { place = 0, items = entry.answer.results, next = () => null, closed = () => {}, progress = () => "", putBack = () => {}, remove = null, within } = options;
  const view = { entry, items, place };
  const title = el("h2", { id: "look-title" });
  const status = el("p.status", { role: "status", "data-testid": "look-status" });
  const far = el("p.note", { "data-testid": "look-progress" });
  const seen = el("span.seen", { "data-testid": "seen" });
  const pair = panes((what) => { seen.textContent = t`You see ${what}`; });
  const about = el("div.about");
  const bar = decidingBar({ act, gallery, view, list, tell, added, asked });
  const tools = toolbar(pair, seen, step);
  const dialog = el("dialog.look.whole", { "data-testid": "look", "aria-labelledby": "look-title" },
    dialogHeader(title, far), tools.element, pair.element, about, bar.element, status);

  function tell(text) {
    status.textContent = text;
  }

  let preview = null; // separate: the preview of the earlier query is gone

  /** @param {Page.Entry} entry */
  function showQuestion({ blob, text }) {
    tools.compare(!text);
    if (text) return pair.showText(text);
    URL.revokeObjectURL(preview);
    preview = blob && URL.createObjectURL(blob); // of a case without a picture there is none
    pair.showQuestion(preview, t`Your photo`);
  }

  /** Show the item at the present place. */
  async function show() {
    const { items, place: at, entry: { answer } } = view;
    const item = items[at];
    far.textContent = progress();
    if (!item) return showNothing();
    const name = item.label ?? item.id;
    title.replaceChildren(el("bdi", {}, name), items.length > 1 ? t`: ${at + 1} of ${items.length}` : "");
    const { withholds } = verdictOf(answer);
    const record = recordUrl(gallery.record_url, item);
    const note = el("p.note", {});
    const similar = el("button.link", { type: "button", "data-testid": "similar",
      onclick: () => similarTo(item) }, t`Items like this one`);
    about.replaceChildren(note, facts(item, withholds), el("p", {}, similar), record ? el("p", {}, el("a", {
      href: record, target: "_blank", rel: "noreferrer", "data-testid": "record",
    }, t`Open the record`)) : "", removal());
    tools.at(at, items.length);
    bar.show(item);
    const alt = t`Item ${name}`;
    const larger = [item.preview_url, originalUrl(item, gallery.image_origins ?? [])].filter(Boolean);
    for (const url of larger) {
      if (await pair.showCandidate(url, alt, name) || items[view.place] !== item) return;
    }
    if (larger.length) note.textContent = t`Its larger picture could not be loaded; this is its thumbnail.`;
    await pair.showCandidate(item.thumbnail_url, alt, name);
  }

  /** The button that deletes the entry, for a visitor who may. */
  function removal() {
    if (!remove) return "";
    const button = el("button.quiet", { type: "button", "data-testid": "remove-case" }, t`Delete this case`);
    pressTwice(button, t`Press again to delete its photo and answer`, async () => {
      const { entry } = view;
      button.disabled = true;
      try {
        await remove(entry);
      } catch (error) {
        button.disabled = false;
        return tell(reasonOf(error));
      }
      tell(t`${entry.name} is deleted.`);
      if (entry === view.entry) goOn();
    });
    return el("p", {}, button);
  }

  /** Show a photograph for which nothing was found. */
  function showNothing() {
    title.replaceChildren(el("bdi", {}, view.entry.name));
    about.replaceChildren(el("p.note", {}, t`The gallery returned no items`), removal());
    tools.at(0, 1);
    bar.show(null);
    pair.showCandidate(null, "", "");
  }

  function step(by) {
    const place = view.place + by;
    if (place < 0 || place >= view.items.length) return;
    view.place = place;
    show();
  }

  /** Go through other items than those of the answer. */
  function list(items) {
    Object.assign(view, { items, place: 0 });
    show();
  }

  let turn = 0;

  /** Note that other items are requested; return what tells whether they are still wanted. */
  function asked() {
    const now = (turn += 1);
    return () => now === turn;
  }

  /** Go through the items of the gallery that are most like one of them.
   *
   * @param {Page.Item} item */
  async function similarTo(item) {
    const wanted = asked();
    try {
      const { results } = await askJson("/v1/galleries/{gallery}/items/{item_id}/similar", {
        path: { gallery: gallery.name, item_id: item.id }, query: { limit: 50 },
      });
      if (!wanted()) return;
      if (results.length) list(results);
      tell(t`${results.length} {0|item|items} like “${brief(item.label ?? item.id)}”, without probabilities.`);
    } catch (error) {
      tell(reasonOf(error));
    }
  }

  /** Take up a photograph from its first result. */
  function take(other) {
    asked(); // nothing about the previous photograph
    Object.assign(view, { entry: other, items: other.answer.results, place: 0 });
    pair.reset();
    showQuestion(other);
    show();
    bar.focus();
  }

  let waits = false; // for the entry that follows: until it is there, nothing is decided

  async function goOn() {
    let following = next(view.entry);
    if (following instanceof Promise) {
      waits = true;
      following = await following.finally(() => { waits = false; });
    }
    if (!dialog.open) return;
    if (following) take(following);
    else dialog.close();
  }

  /** What the keys and buttons of the bar do. */
  function act(name) {
    const item = view.items[view.place] ?? null;
    if (waits) return;
    if (name !== "undo" && !reviewer.get()) {
      bar.askName(name);
      return tell(t`Enter your name first: each decision is stored with it.`);
    }
    if (!item && ["is", "wrong"].includes(name)) return;
    if (name === "undo") {
      const taken = undo(gallery.name);
      if (!taken) return tell(t`There is nothing to take back.`);
      if (taken.entry !== view.entry) {
        putBack(view.entry);
        take(taken.entry);
      }
      far.textContent = progress();
      bar.show(view.items[view.place] ?? null);
      return tell(t`Taken back.`);
    }
    tell(t`${view.entry.name}: ${decisionSentence(decide(view.entry, gallery, name, item))}`);
    if (name === "wrong" && view.place + 1 < view.items.length) return step(1);
    return goOn();
  }

  /** Go on after the photograph of an entry has become an item of the gallery. */
  function added(entry, item) {
    tell(t`${entry.name}: ${decisionSentence(decide(entry, gallery, "new", item))}`);
    if (entry === view.entry) goOn();
  }

  dialog.addEventListener("keydown", (event) => keys(event, { pair, step, act, tools, bar }));
  openDialog(dialog, within, () => {
    pair.stop();
    if (preview) URL.revokeObjectURL(preview);
    bar.end();
    closed();
  });
  showQuestion(entry);
  show();
  bar.focus();
}

function toolbar(pair, seen, step) {
  const radios = Object.entries(MODES).map(([name, words]) => el("label", {}, el("input", {
    type: "radio", name: "look-mode", value: name, checked: name === "beside",
    onchange: () => set(name),
  }), el("span", {}, words())));
  const mix = el("input", {
    type: "range", min: 0, max: 1, step: 0.02, value: 0.5, "aria-label": t`How much of the item`,
    oninput: () => pair.mix(Number(mix.value)),
  });
  const swap = el("button", { type: "button", onclick: () => (pair.turns() ? pair.stop() : pair.swap()) });
  const button = (words, sign, act) =>
    el("button.sign", { type: "button", onclick: act, "aria-label": words, title: words }, sign);
  const back = button(t`Item before`, "‹", () => step(-1));
  const forth = button(t`Next item`, "›", () => step(1));

  const modes = el("fieldset.modes", {}, el("legend.sr", {}, t`How to compare`), radios);

  function set(name) {
    if (modes.hidden && name !== "beside") return;
    pair.mode(name);
    mix.value = "0.5";
    mix.hidden = name !== "overlay";
    swap.hidden = seen.hidden = name !== "flicker";
    seen.textContent = "";
    swap.textContent = pair.turns() ? t`Hold` : t`Swap`;
    element.querySelector(`[value=${name}]`).checked = true;
  }
  swap.addEventListener("click", () => { swap.textContent = t`Swap`; });
  const element = el("div.tools", {},
    modes, mix, swap, seen,
    el("span.zooms", {},
      button(t`Smaller`, "−", () => pair.zoom(1 / STEP)),
      button(t`Larger`, "+", () => pair.zoom(STEP)),
      button(t`Reset`, "⤢", pair.reset)),
    el("span.steps", {}, back, forth));
  set("beside");
  return {
    element, set, swap: () => swap.click(),
    /** Whether the question is a picture, with which one can compare. */
    compare: (may) => { modes.hidden = !may; },
    at: (place, n) => {
      back.disabled = place === 0;
      forth.disabled = place === n - 1;
    },
  };
}

/** The keys: arrows go through the items, or move what is enlarged. */
function keys(event, { pair, step, act, tools, bar }) {
  const typing = event.target.matches("input:not([type=radio]):not([type=range]), select");
  if (typing || event.ctrlKey && event.key !== "z" || event.metaKey || event.altKey) return;
  if (event.repeat && !/^(Arrow|[-+])/.test(event.key)) { // a key that is held decides once
    if (event.target.closest(".deciding")) pressOnce(event);
    return;
  }
  const onward = event.target.matches(":dir(rtl)") ? -1 : 1;
  const arrow = (x, y) => () => (pair.zoomed() ? pair.move(-PAN * x, -PAN * y) : x && step(onward * x));
  const wanted = {
    ArrowRight: arrow(1, 0), ArrowLeft: arrow(-1, 0), ArrowUp: arrow(0, -1), ArrowDown: arrow(0, 1),
    "+": () => pair.zoom(STEP), "-": () => pair.zoom(1 / STEP), "=": pair.reset,
    s: () => tools.set("beside"), f: () => tools.set("flicker"), o: () => tools.set("overlay"),
    x: tools.swap, y: () => act("is"), n: () => act("wrong"), 0: () => act("none"),
    u: () => act("undo"), z: () => event.ctrlKey && act("undo"),
    "/": bar.find, a: bar.add,
  }[event.key];
  if (!wanted || (event.target.matches("[type=radio], [type=range]") && /Arrow/.test(event.key))) return;
  event.preventDefault();
  wanted();
}
