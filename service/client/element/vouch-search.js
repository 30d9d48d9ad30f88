// <vouch-search>: the search of Vouch's page, in any page.
//
// What it shows, says and does is the page's: its scripts, styles and document lie in service/http/page
// and are bundled with this file.

import ask from "../../http/page/ask/ask.css";
import page from "../../http/page/index.html";
import styles from "../../http/page/page.css";
import { wanted } from "../../http/page/wanted.js";

// Shared by all elements; a policy against inline styles allows them.
const first = new CSSStyleSheet();
const later = new CSSStyleSheet(); // empty until the first answer or dialog
first.replaceSync([styles, ask].join("\n"));
let filled = null;
wanted.styled = () => (filled ??= import("./late_styles.js")
  .then(({ default: text }) => { later.replaceSync(text); }, () => { filled = null; }));

// A web page may require trusted types. What is parsed runs nothing: the parts below, and HTML that is
// pasted or dropped, of which only a link is read.
const policy = globalThis.trustedTypes?.createPolicy("vouch-search", { createHTML: (text) => text });
if (policy) wanted.html = (text) => policy.createHTML(text);

let scripts = null;

/** What the page has in its main part. Its title is a heading of the second order here. */
function parts() {
  const source = new DOMParser().parseFromString(wanted.html(page), "text/html");
  const part = document.createElement("div");
  part.className = "vouch";
  part.append(...source.querySelector(".vouch").childNodes);
  const title = document.createElement("h2");
  const heading = part.querySelector("h1");
  title.id = heading.id;
  title.dataset.t = "";
  title.append(...heading.childNodes);
  heading.replaceWith(title);
  part.querySelector("noscript")?.remove();
  return part;
}

export class VouchSearch extends HTMLElement {
  #search = null;
  #key = null;

  static observedAttributes = ["service", "gallery"];

  constructor() {
    super();
    if (!Object.hasOwn(this, "key")) return;
    const { key } = this; // set before this script had come
    delete this.key;
    this.key = key;
  }

  /** The answer that is shown; null where there is none. */
  get answer() {
    return this.#search?.answer ?? null;
  }

  /** The API key that is sent, where the service wants one; else the element shows a field for it. */
  set key(text) {
    this.#key = text;
    this.#renew();
  }

  /** Search with a picture, a Blob or File. */
  async search(picture) {
    await this.ready;
    if (!this.#search) throw new Error("This <vouch-search> is not in a web page, or cannot ask its service.");
    this.#search.take([picture], null, "chosen");
  }

  connectedCallback() {
    this.ready = this.#start();
  }

  disconnectedCallback() {
    this.#search?.end();
    this.#search = null;
  }

  attributeChangedCallback(_, before, now) {
    if (before !== now) this.#renew();
  }

  /** Begin anew, with the new key or attribute. */
  #renew() {
    if (!this.ready || !this.isConnected) return;
    this.disconnectedCallback();
    this.connectedCallback();
  }

  async #start() {
    wanted.language ??= this.lang || null; // which the scripts read when they are loaded
    // Once for all elements, so that they begin in their order.
    const [{ Search }, { connect, key }, { language }, { problemOf, problemPanel }] = await (scripts ??= Promise.all([
      import("../../http/page/search.js"), import("../../http/page/api.js"),
      import("../../http/page/language.js"), import("../../http/page/problem.js"),
    ]));
    if (!this.isConnected || this.#search) return;
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [first, later];
    const part = parts();
    part.lang = language; // of the first element
    root.replaceChildren(part);
    try {
      connect(this.getAttribute("service") ?? location.origin);
    } catch (error) {
      part.replaceChildren(problemPanel(problemOf(error).problem));
      return;
    }
    if (this.#key !== null) key.set(this.#key);
    const name = this.getAttribute("gallery");
    const tell = (type) => (detail) => this.dispatchEvent(new CustomEvent(type, { detail }));
    this.#search = new Search(root, {
      path: name === null ? [] : [name], only: name !== null, target: this,
      told: {
        answered: tell("vouch-answer"),
        decided: ({ kind, item, reviewer, at, state, entry: { answer } }) =>
          tell("vouch-decision")({ kind, item, reviewer, at, state, answer }),
      },
    });
  }
}

customElements.define("vouch-search", VouchSearch);
