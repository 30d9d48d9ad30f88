// What a person has decided of photographs: kept here, and sent to the service where it listens.

import { askJson } from "../api.js";
import { remember, remembered } from "../memory.js";

const HOLD = 8000; // ms in which a decision can be taken back before it is sent
const NAME = "vouch-reviewer"; // remembered by the browser

export const reviewer = {
  get: () => remembered(NAME) ?? "",
  set: (name) => remember(NAME, name.trim()),
};

const made = []; // all decisions, the last one last
const listeners = new Set();
let waiting = null; // the decision that is not sent yet
let timer;

/** Call `listener` with each decision whose state has changed; what it answers ends that. */
export function onDecision(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const tell = (decision) => listeners.forEach((listener) => listener(decision));

/** What to tell the service of each item, for a decision of one of the kinds `is`, `wrong`, `none`
 * and `new`. A decision that was sent before cannot be taken back, only overruled: of another
 * label's item that was confirmed it is said that it is wrong. */
function pairsOf({ entry, kind, item }) {
  const says = new Map();
  const confirmed = [...entry.said].filter(([, { correct }]) => correct).map(([, pair]) => pair.item);
  if (kind === "is") {
    for (const other of confirmed) {
      if (other.label === null || other.label !== item.label) says.set(other.id, [other, false]);
    }
    says.set(item.id, [item, true]);
  } else if (kind === "wrong") {
    says.set(item.id, [item, false]);
  } else {
    for (const one of [...entry.answer.results, ...confirmed]) says.set(one.id, [one, false]);
  }
  return [...says.values()];
}

/** Decide of a photograph; the decision before it is sent. `gallery.keeps`: the service listens. */
export function decide(entry, gallery, kind, item = null) {
  flush();
  const decision = {
    entry, gallery, kind, item, before: entry.decision, reviewer: reviewer.get(),
    at: new Date().toISOString(), state: gallery.keeps ? "waiting" : "kept", problem: null,
  };
  entry.decision = decision;
  made.push(decision);
  if (gallery.keeps) {
    waiting = decision;
    timer = setTimeout(flush, HOLD);
  }
  tell(decision);
  return decision;
}

/** Take the last decision back, and return it; null where there is none. */
export function undo() {
  const last = made.pop() ?? null;
  if (!last) return null;
  if (last === waiting) {
    clearTimeout(timer);
    waiting = null;
  }
  last.entry.decision = last.before;
  if (last.kind === "new") remove(last);
  tell(last);
  return last;
}

/** Take an item that was added back out of the gallery. */
function remove(decision) {
  const path = decision.item.id.split("/").map(encodeURIComponent).join("/");
  const url = `/v1/galleries/${encodeURIComponent(decision.gallery.name)}/items/${path}`;
  askJson(url, { method: "DELETE" }).catch((error) => fail(decision, error));
}

function fail(decision, error) {
  decision.state = "failed";
  decision.problem = error.problem?.detail ?? String(error);
  tell(decision);
}

/** Send the decision that is held back. */
export function flush() {
  clearTimeout(timer);
  const decision = waiting;
  waiting = null;
  if (decision) send(decision);
}

async function send(decision) {
  const { entry, gallery } = decision;
  const url = `/v1/galleries/${encodeURIComponent(gallery.name)}/feedback`;
  const say = ([item, correct]) => askJson(url, {
    method: "POST",
    keepalive: true, // the page may be on its way out
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ query_id: entry.answer.query.id, item_id: item.id, correct }),
  }).then(() => entry.said.set(item.id, { item, correct }));
  try {
    await Promise.all(pairsOf(decision).map(say));
    decision.state = "sent";
    tell(decision);
  } catch (error) {
    fail(decision, error);
  }
}

addEventListener("pagehide", flush);
