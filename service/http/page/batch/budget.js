// Which answers of a batch may be accepted unseen, within one share of wrong ones.

/** The first result's match probability, where it may decide: of an ordinary image, by a
 * calibration that holds. Else null. */
export function certainty({ answer }) {
  if (!answer || answer.bundle.calibration.status !== "valid") return null;
  if (!["match", "ambiguous"].includes(answer.verdict)) return null;
  return answer.results[0]?.match_probability ?? null;
}

/** The largest set of entries of which, by their own probabilities, at most a share `budget` is
 * expected to be wrong, and whose probabilities reach the `threshold` from which the calibration
 * promises that share. Without a threshold nothing is promised, and nothing accepted.
 * Answers { accepted: Set, wrong: expected number of wrong ones }. */
export function accept(entries, budget, threshold) {
  const accepted = new Set();
  let wrong = 0;
  if (threshold !== null) {
    const sure = entries.map((entry) => [certainty(entry), entry])
      .filter(([p]) => p !== null && p >= threshold).sort(([a], [b]) => b - a);
    for (const [p, entry] of sure) { // the surest first: the mean error only grows
      if (wrong + (1 - p) > budget * (accepted.size + 1)) break;
      accepted.add(entry);
      wrong += 1 - p;
    }
  }
  return { accepted, wrong };
}

const PLACES = { look: 0, failed: 1, waiting: 2, accepted: 3, decided: 4 };

/** What is to be done with an entry: look, failed, waiting, accepted or decided. */
export function stateOf(entry, accepted) {
  if (entry.decision) return "decided";
  if (entry.problem) return "failed";
  if (!entry.answer) return "waiting";
  return entry.accepted || accepted.has(entry) ? "accepted" : "look";
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

/** What needs a person first, then what failed, waits, is accepted, is decided. */
export function sorted(entries, accepted) {
  return entries.map((entry, i) => [PLACES[stateOf(entry, accepted)], ...urgency(entry), i, entry])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2] || a[3] - b[3]).map((row) => row[4]);
}
