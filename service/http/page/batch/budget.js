// Which answers of a batch may be accepted unseen, within one share of wrong ones.

/** The first result's match probability, where it may decide: of an ordinary image that no person has
 * decided on, by a calibration that holds. Else null.
 *
 * @param {Page.Row} row */
export function certainty({ answer, decision, accepted }) {
  if (!answer || decision || accepted || answer.bundle.calibration.status !== "valid") return null;
  if (!["match", "ambiguous"].includes(answer.verdict)) return null;
  return answer.results[0]?.match_probability ?? null;
}

/** The largest set of entries of which, by their own probabilities, at most a share `budget` is
 * expected to be wrong, and whose probabilities reach the `threshold` from which the calibration
 * promises that share. Without a threshold nothing is promised, and nothing accepted.
 * Answers { accepted: Set, wrong: expected number of wrong ones }.
 *
 * @param {Page.Row[]} entries */
export function accept(entries, budget, threshold) {
  const accepted = new Set();
  let wrong = 0;
  if (threshold !== null) {
    const sure = entries.map((entry) => ({ p: certainty(entry), entry }))
      .filter(({ p }) => p !== null && p >= threshold).sort((a, b) => b.p - a.p);
    for (const { p, entry } of sure) { // the surest first: the mean error only grows
      if (wrong + (1 - p) > budget * (accepted.size + 1)) break;
      accepted.add(entry);
      wrong += 1 - p;
    }
  }
  return { accepted, wrong };
}
