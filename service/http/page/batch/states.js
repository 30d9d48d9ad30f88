// What has been done with the photographs of a batch, or is to be: in words, and in which order.

import { t } from "../language.js";
import { decisionSentence } from "../words.js";

/** The states of a photograph: what needs a person first, then what failed, waits, is accepted, is
 * decided. */
export const STATES = {
  look: () => t`to review`,
  failed: () => t`failed`,
  waiting: () => t`waiting`,
  accepted: () => t`accepted`,
  decided: () => t`decided`,
};

/** The state of an entry: look, failed, waiting, accepted or decided. */
export function stateOf(entry, accepted) {
  if (entry.decision) return entry.decision.state === "failed" ? "failed" : "decided";
  if (entry.problem) return "failed";
  if (!entry.answer) return "waiting";
  return entry.accepted || accepted.has(entry) ? "accepted" : "look";
}

/** What has been done with an entry, or is to be, in words. */
export function todo({ decision, problem, accepted }, state) {
  if (decision) return decisionSentence(decision) + (decision.state === "failed" ? ` ${decision.problem}` : "");
  if (problem) return t`${STATES.failed()}: ${problem}`;
  return accepted ? t`accepted without review` : STATES[state]();
}

/** What a decision teaches most first: uncertain answers, the most undecided first; then photographs
 * unlike the gallery; then matches, the least sure first. */
function urgency({ answer }) {
  const p = answer?.results[0]?.match_probability ?? null;
  switch (answer?.verdict) {
    case "ambiguous": return [0, p === null ? 1 : Math.abs(p - 0.5)];
    case "match": return [2, p ?? 1];
    default: return [1, answer?.verdict === "no_match" ? 0 : 1];
  }
}

const PLACES = Object.keys(STATES);

/** The entries by their states, and by what a decision teaches. */
export function sorted(entries, accepted) {
  return entries.map((entry, i) => [PLACES.indexOf(stateOf(entry, accepted)), ...urgency(entry), i, entry])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2] || a[3] - b[3]).map((row) => row[4]);
}
