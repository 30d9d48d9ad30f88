// A batch as comma-separated values (RFC 4180), for other programs.

import { verdictOf } from "../answer.js";
import { stateOf } from "./budget.js";

/** The same as in `model_store/spreadsheets.py`. */
const FORMULA = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

/** A cell. What a spreadsheet would take for a formula is text with an apostrophe before it. */
function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const COLUMNS = {
  file: ({ name }) => name,
  verdict: ({ answer }) => answer?.verdict,
  first_id: ({ answer }) => answer?.results[0]?.id,
  first_label: ({ answer }) => answer?.results[0]?.label,
  match_probability: ({ answer }) =>
    answer && !verdictOf(answer).withholds ? answer.results[0]?.match_probability : null,
  no_match_probability: ({ answer }) => answer?.no_match_probability,
  uncertainty_percentile: ({ answer }) => answer?.query.uncertainty.percentile,
  outlier_p_value: ({ answer }) => answer?.query.ood.p_value,
  accepted_unseen_at: ({ accepted }) => accepted,
  state: (entry, { accepted }) => stateOf(entry, accepted),
  error_budget: (_, { budget }) => budget,
  decision: ({ decision }) => decision?.kind,
  item_id: ({ decision }) => decision?.item?.id,
  item_label: ({ decision }) => decision?.item?.label,
  reviewer: ({ decision }) => decision?.reviewer,
  decided_at: ({ decision }) => decision?.at,
  feedback: ({ decision }) => decision?.state,
  problem: ({ problem, decision }) => problem ?? decision?.problem,
  query_id: ({ answer }) => answer?.query.id,
  bundle_id: ({ answer }) => answer?.bundle.id,
};

/** The text of the file. */
function csv(entries, context) {
  const rows = entries.map((entry) => Object.values(COLUMNS).map((of) => cell(of(entry, context))));
  return [Object.keys(COLUMNS), ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

/** The file; the mark at its beginning tells spreadsheets that it is UTF-8. */
export const csvFile = (entries, context) =>
  new Blob(["\ufeff", csv(entries, context)], { type: "text/csv" });
