// A batch as comma-separated values.

import { verdictOf } from "../answer.js";
import { csvFile } from "../spreadsheet.js";
import { stateOf } from "./states.js";

/** The columns, by what is the same for all rows.
 *
 * @returns {Record<string, (row: Page.Row) => unknown>} */
const columnsOf = (context) => ({
  file: ({ name }) => name,
  verdict: ({ answer }) => answer?.verdict,
  own_line: ({ answer }) => answer?.line,
  first_id: ({ answer }) => answer?.results[0]?.id,
  first_label: ({ answer }) => answer?.results[0]?.label,
  match_probability: ({ answer }) =>
    answer && !verdictOf(answer).withholds ? answer.results[0]?.match_probability : null,
  no_match_probability: ({ answer }) => answer?.no_match_probability,
  uncertainty_percentile: ({ answer }) => answer?.query.uncertainty.percentile,
  outlier_p_value: ({ answer }) => answer?.query.ood.p_value,
  accepted_unseen_at: ({ accepted }) => accepted,
  state: (entry) => stateOf(entry, context.accepted),
  error_budget: () => context.budget,
  decision: ({ decision }) => decision?.kind,
  item_id: ({ decision }) => decision?.item?.id,
  item_label: ({ decision }) => decision?.item?.label,
  reviewer: ({ decision }) => decision?.reviewer,
  decided_at: ({ decision }) => decision?.at,
  feedback: ({ decision }) => decision?.state,
  problem: ({ problem, decision }) => problem ?? decision?.problem,
  query_id: ({ answer }) => answer?.query.id,
  bundle_id: ({ answer }) => answer?.bundle.id,
});

/** The file of `entries`, whose verdicts follow the visitor's line; see `byLine`. */
export const batchFile = ({ entries, ...context }) => csvFile(columnsOf(context), entries);
