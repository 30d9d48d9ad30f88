// What a person has decided of photographs: kept here, and by the service where it keeps decisions.

import { askJson, deleteItem } from "../api.js";
import { remember, remembered } from "../memory.js";
import { reasonOf } from "../problem.js";

const NAME = "vouch-reviewer"; // remembered by the browser

let own = null; // for a browser that remembers nothing

export const reviewer = {
  get: () => own ?? remembered(NAME) ?? "",
  set: (name) => {
    own = name.trim();
    remember(NAME, own);
  },
};

const made = []; // all decisions, the last one last
const listeners = new Set();

/** Call `listener` with each decision whose state has changed; what it answers ends that. */
export function onDecision(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const tell = (decision) => listeners.forEach((listener) => listener(decision));

/** Say whether an item that an answer found is right, of an answer that was drawn at random.
 *
 * @param {Api.SearchAnswer} answer
 * @param {Page.Item} item
 * @param {boolean} right */
export function review({ gallery, query }, item, right) {
  const by = reviewer.get();
  return askJson("/v1/galleries/{gallery}/feedback", {
    method: "POST",
    path: { gallery },
    json: {
      query_id: query.id, item_id: item.id,
      decision: right ? "this_item" : "not_this_item", ...(by && { reviewer: by }),
    },
  });
}

/** A decision in the service's words. Of an item that is not the first result it says more to
 * decide that it is that one: the first is then wrong.
 *
 * @param {Page.Entry} entry
 * @param {Page.Kind} kind
 * @param {Page.Item} item
 * @returns {Api.FeedbackRequest} */
function worded({ answer }, kind, item) {
  const { results: [first], query } = answer;
  /** @type {Record<Page.Kind, Api.FeedbackRequest["decision"]>} */
  const decisions = {
    is: item?.id === first?.id ? "this_item" : "that_item",
    wrong: "not_this_item", none: "none_of_these", new: "new",
  };
  const named = kind === "is" || kind === "wrong";
  return { query_id: query.id, decision: decisions[kind], ...(named && { item_id: item.id }) };
}

/** Decide of a photograph; `gallery.keeps`: the service keeps decisions.
 *
 * @param {Page.Entry} entry
 * @param {Page.Gallery} gallery
 * @param {Page.Kind} kind */
export function decide(entry, gallery, kind, item = null) {
  // Several items may be wrong; all else is one decision, which a later one takes the place of.
  const { decision: before, settled = null } = entry;
  const replaces = kind === "wrong" && settled?.item?.id !== item.id ? null : settled;
  /** @type {Page.Decision} */
  const decision = {
    entry, gallery, kind, item, before, settled, replaces, reviewer: reviewer.get(),
    said: worded(entry, kind, item), at: new Date().toISOString(), state: gallery.keeps ? "waiting" : "kept", problem: null,
  };
  entry.decision = decision;
  if (kind !== "wrong") entry.settled = decision;
  else if (replaces) entry.settled = null;
  made.push(decision);
  inOrder(decision, async () => {
    await retract(decision.replaces);
    await send(decision);
  });
  tell(decision);
  return decision;
}

/** Bring back a decision that was made before the page was loaded anew; one that was still to be sent
 * is sent. */
export function resumed(entry, gallery, saved) {
  const decision = {
    ...saved, entry, gallery, before: null, settled: null, replaces: null, said: worded(entry, saved.kind, saved.item),
  };
  entry.decision = decision;
  if (decision.kind !== "wrong") entry.settled = decision;
  made.push(decision);
  made.sort((a, b) => (a.at < b.at ? -1 : 1));
  if (gallery.keeps && decision.state === "waiting") inOrder(decision, () => send(decision));
}

/** Take the last decision on a gallery back, and return it; null where there is none.
 *
 * @param {string} name */
export function undo(name) {
  const at = made.findLastIndex(({ gallery }) => gallery.name === name);
  if (at < 0) return null;
  const [last] = made.splice(at, 1);
  Object.assign(last.entry, { decision: last.before, settled: last.settled });
  inOrder(last, async () => {
    await retract(last);
    if (last.replaces) await send(last.replaces);
  });
  if (last.kind === "new") remove(last);
  tell(last);
  return last;
}

/** Ask the service in the order in which a photograph was decided on.
 *
 * @param {Page.Decision} decision */
function inOrder(decision, work) {
  const { entry, gallery } = decision;
  if (!gallery.keeps) return;
  entry.line = (entry.line ?? Promise.resolve()).then(work).catch((error) => fail(decision, error));
}

/** @param {Page.Decision} decision */
async function send(decision) {
  const { entry, gallery, said, reviewer: by } = decision;
  const { number } = await askJson("/v1/galleries/{gallery}/feedback", {
    method: "POST",
    keepalive: true, // the page may be on its way out
    path: { gallery: gallery.name },
    json: { ...said, ...(by && { reviewer: by }) },
  });
  Object.assign(decision, { number, state: "sent" });
  if (entry.decision === decision) tell(decision);
}

/** Take back what the service has of a decision, and the decisions that it should have replaced.
 *
 * @param {Page.Decision} decision */
async function retract(decision) {
  for (let one = decision; one; one = one.replaces) {
    if (one.number === undefined) continue;
    await takeBack(one.gallery.name, one.number);
    Object.assign(one, { number: undefined, state: "waiting" });
  }
}

/** Take back a decision that the service keeps under a number.
 *
 * @param {string} gallery
 * @param {number} number */
export const takeBack = (gallery, number) =>
  askJson("/v1/galleries/{gallery}/feedback/{number}", { method: "DELETE", path: { gallery, number }, keepalive: true });

/** Take an item that was added back out of the gallery. */
function remove(decision) {
  deleteItem(decision.gallery, decision.item.id).then(() => tell(decision), (error) => fail(decision, error));
}

function fail(decision, error) {
  decision.state = "failed";
  decision.problem = reasonOf(error);
  tell(decision);
}
