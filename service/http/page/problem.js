// What went wrong, and what can be done about it.

import { Problem } from "./api.js";
import { el } from "./elements.js";
import { language, t } from "./language.js";
import { said } from "./service_texts.js";
import { REMEDIES, duration } from "./words.js";

/** Whether the same request may be answered in a moment. */
export const passes = (status) => [0, 200, 408, 429].includes(status) || status >= 500;

/** What was thrown, as a problem. */
export function problemOf(error) {
  if (error instanceof Problem) return error;
  console.error(error);
  return new Problem({ title: t`This page could not show the answer`, detail: String(error) });
}

/** Why something failed, in a sentence.
 *
 * @param {{ problem?: Partial<Api.Problem>, message?: string }} error */
export const reasonOf = ({ problem, message }) => said(problem?.detail || problem?.title || message || "");

/** A problem, with a button where `retry` may help. */
export function problemPanel(problem, retryAfter, retry) {
  const { status, detail, code, request_id: requestId } = problem;
  const wait = Number(retryAfter) > 0 ? t`Wait ${duration(Number(retryAfter))}, then try again.` : null;
  const canRetry = retry && passes(status);
  const remedy = problem.remedy ?? wait ?? REMEDIES[code] ?? REMEDIES[status] ??
    (status >= 500 && t`Server error. If it persists, contact the operator.`);
  const ids = [status > 0 && `HTTP ${status}`, code, requestId && t`request ${requestId}`];
  const idLine = ids.filter(Boolean).join(" · ");
  return el("div.problem", { "data-testid": "problem" },
    el("h2", {}, said(problem.title)),
    // What stays in the service's own words is read aloud in its language.
    detail && el("p", { lang: said(detail) === detail ? "en" : language }, said(detail)),
    remedy && el("p.remedy", {}, remedy),
    canRetry && el("button", { type: "button", onclick: retry }, t`Try again`),
    idLine && el("p.ids", {}, idLine));
}
