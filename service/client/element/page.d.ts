// Types of the page's modules that are no types of the API.
import type { Operations } from "./api.js";
import type { VouchDecision } from "./vouch-search.js";

export as namespace Page;

type PathOf<Name> = Name extends `${string} ${infer Path}` ? Path : never;
type MethodOf<Name> = Name extends `${infer Method} ${string}` ? Method : never;

export type Path = PathOf<keyof Operations>;
export type Method = MethodOf<keyof Operations>;
type Operation<M extends Method, P extends Path> = Operations[`${M} ${P}` & keyof Operations];
type Field<O, Name extends string> = O extends { [name in Name]?: infer Value } ? Value : never;

/** What `ask` takes: `method` and options of fetch, and what the operation takes. */
export type Asked<M extends Method, P extends Path> = {
  method?: M;
  path?: Field<Operation<M, P>, "path">;
  query?: Field<Operation<M, P>, "query">;
  json?: Field<Operation<M, P>, "json">;
  body?: FormData;
  signal?: AbortSignal;
  keepalive?: boolean;
};
export type Answer<M extends Method, P extends Path> = Field<Operation<M, P>, "answer">;

/** The element of a tag with classes, such as "button.primary". */
export type Made<Tag extends string> = Tag extends keyof HTMLElementTagNameMap
  ? HTMLElementTagNameMap[Tag]
  : Tag extends `${infer Name}.${string}`
    ? Name extends keyof HTMLElementTagNameMap
      ? HTMLElementTagNameMap[Name]
      : HTMLElement
    : HTMLElement;

export type Gallery = Api.GalleryDetail & {
  queries: Api.CalibrationReport["queries"];
  maxError: number | null;
  /** Whether the service stores decisions. */
  stores: boolean;
  /** Whether it stores those of this visitor. */
  keeps: boolean;
};
/** An item of a list: of an answer, of similar items, or of the gallery. */
export type Item = Api.ItemDetail & Partial<Api.Result>;

export type Kind = VouchDecision["kind"];
export type Decision = Omit<VouchDecision, "answer"> & {
  entry: Entry;
  gallery: Gallery;
  problem: string | null;
  said: Api.FeedbackRequest;
  before: Decision | null;
  settled: Decision | null;
  replaces: Decision | null;
  number?: number;
};
/** A photograph with its answer. */
export type Entry<Answer = ShownAnswer> = {
  name: string;
  blob?: Blob | null;
  /** In place of a photograph. */
  text?: string;
  answer: Answer;
  decision: Decision | null;
  settled?: Decision | null;
  line?: Promise<unknown>;
  counted?: boolean;
};
export type ShownAnswer = {
  gallery: string;
  verdict: string;
  results: Item[];
  query: { id: string };
};
/** A photograph of a batch. */
export type Row = Entry<Api.SearchAnswer & { line?: number }> & {
  number: number | null;
  preview: string;
  problem: string | null;
  /** When it was accepted unseen. */
  accepted: string | null;
};
/** How a verdict is worded. */
export type Wording = {
  word: string;
  legend: string;
  says: (answer: Api.SearchAnswer & { line?: number; filtered?: boolean }) => string;
  heading: string;
  note?: string;
  shows?: boolean;
  subordinate?: boolean;
  withholds?: boolean;
};
/** The map of a gallery, whose numbers are read. */
export type ItemMap = Omit<Api.GalleryMap, "rows" | "x" | "y" | "codes"> & {
  rows: Uint32Array;
  x: Uint16Array;
  y: Uint16Array;
  codes: Uint8Array;
  hidden: Uint8Array;
  rowsAsText: string;
  extent?: Record<"x" | "y", { begin: number; size: number }>;
};

declare global {
  // What is found by a selector or an id is what the page made: it is not checked.
  interface ParentNode {
    querySelector(selectors: string): any;
  }
  interface Document {
    getElementById(id: string): any;
  }
  interface Element {
    readonly dataset: DOMStringMap;
    closest(selectors: string): any;
  }
}
