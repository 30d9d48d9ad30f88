import type { SearchAnswer } from "./api.js";

/** `<vouch-search service="https://vouch.example" gallery="shoes" lang="de">` */
export class VouchSearch extends HTMLElement {
  /** The answer that is shown, of `POST …/search`; null without one. */
  readonly answer: SearchAnswer | null;
  /** Resolves once the element can be asked; absent until the element is put into a page. */
  readonly ready?: Promise<void>;
  /** The API key that is sent. A new key starts the element anew. */
  set key(text: string);
  /** Search with a picture, as if the visitor had chosen it. Rejects if the element is not in a page, or if the page
   * searches another service. */
  search(picture: Blob): Promise<void>;
}

/** What a person has decided of a photograph. */
export interface VouchDecision {
  kind: "is" | "wrong" | "none" | "new";
  item: { id: string; label: string | null } | null;
  reviewer: string;
  /** ISO 8601. */
  at: string;
  /** `kept`: the service keeps no feedback. */
  state: "waiting" | "sent" | "failed" | "kept";
  answer: SearchAnswer;
}

declare global {
  interface HTMLElementTagNameMap {
    "vouch-search": VouchSearch;
  }
  interface HTMLElementEventMap {
    "vouch-answer": CustomEvent<SearchAnswer>;
    "vouch-decision": CustomEvent<VouchDecision>;
  }
}
