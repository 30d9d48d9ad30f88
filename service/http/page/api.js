// Asking the API, with a key where the service wants one.

import { learn, t } from "./language.js";
import { wanted as page } from "./wanted.js";

const KEY = "vouch-key"; // in sessionStorage: this tab alone, and only while it is open

let service = location.origin;
let connected = false;

/** Ask the service at `url` from now on. A document asks one: its keys and its decisions belong
 * to that. */
export function connect(url) {
  const { href } = new URL(url, document.baseURI);
  if (connected && href !== service) {
    throw new Problem({
      title: t`This web page searches another service already`,
      detail: t`It searches ${service}, and cannot search ${href} too.`,
    });
  }
  [service, connected] = [href, true];
}

/** The whole address of what the service calls `path`, with or without the service's own prefix. */
export function address(path) {
  const prefix = new URL(service).pathname.replace(/\/+$/, "");
  const lacks = path.startsWith("/") && !path.startsWith(`${prefix}/`);
  return new URL(lacks ? prefix + path : path, service).href;
}

let kept = null; // where the browser keeps nothing, such as in a frame

export const key = {
  get: () => { try { return sessionStorage.getItem(KEY); } catch { return kept; } },
  set: (text) => { try { sessionStorage.setItem(KEY, text); } catch { kept = text; } },
  forget: () => { try { sessionStorage.removeItem(KEY); } catch { kept = null; } },
};

export class Problem extends Error {
  /** @param {Partial<Api.Problem> & { remedy?: string, panel?: Element }} problem
   * @param {string} [retryAfter] seconds */
  constructor(problem, retryAfter) {
    super(problem.title);
    this.problem = problem;
    this.retryAfter = retryAfter;
  }
}

/** A part of this page and its styles, once they have come. A browser asks once for a part, until the
 * page is reloaded.
 *
 * @template Module
 * @param {Promise<Module>} module
 * @returns {Promise<Module>} */
export const arrived = (module) => Promise.all([module, page.styled()]).then(([part]) => part, () => {
  throw new Problem({
    title: t`The service cannot be reached`,
    detail: t`Part of the page failed to load.`,
    remedy: t`Check that the service is running, then reload the page.`,
  });
});

const unreadable = (response) =>
  new Problem({
    status: response.status,
    title: response.ok ? t`The answer could not be read` : t`The service answered ${response.status}`,
    detail: t`Unexpected response from the service. A proxy in between may have answered.`,
  });

/** The address of an operation: values of `path` replace their {names}, null is left out of the `query`.
 *
 * @param {string} url
 * @param {{ path?: Record<string, any>, query?: Record<string, any> }} options */
export function filled(url, { path = {}, query = {} }) {
  const place = url.replace(/\{(\w+)\}/g, (whole, name) => !Object.hasOwn(path, name) ? whole
    : encodeURIComponent(path[name]).replaceAll("%2F", name === "item_id" ? "/" : "%2F"));
  const given = Object.entries(query).filter(([, value]) => value != null);
  return given.length ? `${place}?${new URLSearchParams(given)}` : place;
}

/** Whether a request changes nothing, so that it can be sent again.
 *
 * @param {string} url
 * @param {RequestInit} options */
const isQuery = (url, { method = "GET" }) =>
  method === "GET" || /^\/v1\/galleries\/[^/]+\/(search|assess|embed|decide)/.test(url);

/** Ask at an address or for an operation, with options of `fetch` and the operation's `path`, `query`
 * and `json`. A query whose replica has ended is sent once more, to another replica.
 *
 * @param {string} url
 * @param {RequestInit & { path?: any, query?: any, json?: any }} options */
export async function ask(url, options = {}) {
  try {
    return await askOnce(url, options);
  } catch (error) {
    if (error.problem?.code !== "replica_lost" || !isQuery(url, options)) throw error;
    return askOnce(url, options);
  }
}

/** @param {string} url
 * @param {RequestInit & { path?: any, query?: any, json?: any }} options */
async function askOnce(url, { path, query, json, ...options }) {
  const sent = key.get();
  const headers = {
    ...(json && { "Content-Type": "application/json" }), ...(sent && { Authorization: `Bearer ${sent}` }),
  };
  const body = json ? JSON.stringify(json) : options.body;
  let response;
  try {
    response = await fetch(address(filled(url, { path, query })), { ...options, headers, body });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      status: 0,
      title: t`The service cannot be reached`,
      detail: isQuery(url, options) ? t`The service did not respond.`
        : t`The service did not respond, so the change may not be stored.`,
    });
  }
  if (response.ok) return response;
  const [problem] = await Promise.all([response.json().catch(() => null), learn()]);
  if (!problem?.title) throw unreadable(response);
  if (response.status === 401) { // the service says how programs send a key
    problem.detail = [problem.detail?.split(". ")[0].replace(/\.?$/, "."), t`Enter a key under “Your key”.`].filter(Boolean).join(" ");
  }
  throw new Problem({ status: response.status, ...problem }, response.headers.get("retry-after"));
}

/**
 * Ask for an operation by its path, and return its answer.
 *
 * @template {Page.Path} P
 * @template {Page.Method} [M="GET"]
 * @param {P} url
 * @param {Page.Asked<M, P>} [options]
 * @returns {Promise<Page.Answer<M, P>>}
 */
export async function askJson(url, options) {
  const response = await ask(url, options);
  return response.json().catch((error) => {
    throw error.name === "AbortError" ? error : unreadable(response);
  });
}

const READ_BYTES = 64 * 2 ** 20; // the service refuses a larger file before it has read it

/** Return a copy of `file` in memory. Raises a Problem if the file cannot be read. */
async function inMemory(file) {
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Problem({
      title: t`The file cannot be read`,
      detail: t`The file was changed, moved or deleted after it was chosen, or it is a folder.`,
      remedy: t`Choose the file again.`,
    });
  });
  return new Blob([bytes], { type: file.type });
}

/** The form that sends an image, with further `fields`. The image is read first: a browser reports
 * a deleted file as a network error, and may send a changed file without an error. */
export async function imageForm(blob, name, fields = {}) {
  const form = new FormData();
  form.append("image", blob.size > READ_BYTES ? blob : await inMemory(blob), name);
  for (const [field, value] of Object.entries(fields)) form.append(field, value);
  return form;
}

/** The answer to an image; `options` are those of a search.
 *
 * @param {Partial<Api.SearchForm>} [options] */
export async function searchWith(gallery, blob, name, options = {}, signal = undefined) {
  const body = await imageForm(blob, name, options);
  return askJson("/v1/galleries/{gallery}/search", { method: "POST", path: { gallery }, body, signal });
}

/** The answer to a query of the page: an image, or else a text.
 *
 * @param {string} gallery
 * @param {{ text?: string, blob?: Blob, name: string }} query
 * @param {Partial<Api.SearchForm>} options
 * @param {AbortSignal} [signal] */
export function searchFor(gallery, { text, blob, name }, options = {}, signal = undefined) {
  if (!text) return searchWith(gallery, blob, name, options, signal);
  const path = { gallery };
  return askJson("/v1/galleries/{gallery}/search/text", { method: "POST", path, json: { text, ...options }, signal });
}

/** Delete an item of a gallery. */
export const deleteItem = ({ name }, id) =>
  askJson("/v1/galleries/{gallery}/items/{item_id}", { method: "DELETE", path: { gallery: name, item_id: id } })
    .catch((error) => {
      if (error.problem?.code !== "item_not_found") throw error; // else it is deleted already
    });

const SCOPES = ["read", "review", "write", "admin"];

/** What the visitor may do: decide, review, write, admin; all of it for a service that knows no rights, no
 * more than to try a decision where the service does not answer. `key`: one is used, or would allow more. */
export const permissions = () => askJson("/v1/usage").then(({ scope, key: id }) => {
  const has = (one) => SCOPES.indexOf(scope) >= SCOPES.indexOf(one);
  return { decide: has("review"), review: has("review") && (id !== null || scope === "admin"), write: has("write"), admin: has("admin"), key: id !== null || !has("admin") };
}, (error) => {
  const all = error.problem?.status === 404;
  return { decide: true, review: all, write: all, admin: all, key: !all };
});

/** Whether the visitor's key may change galleries. */
export const mayWrite = () => permissions().then(({ write }) => write);

const TRIES = 6; // where the service is busy
const LONGEST_WAIT = 60; // seconds

/** What `task` answers; it is tried again while the service is busy, unless that lasts longer.
 *
 * @template Answer
 * @param {() => Promise<Answer>} task
 * @param {{ aborted: boolean }} signal */
export async function patiently(task, signal) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await task();
    } catch (error) {
      const wait = Number(error.retryAfter) || tried;
      if (tried === TRIES || signal.aborted || ![429, 503].includes(error.problem?.status) || wait > LONGEST_WAIT) throw error;
      await new Promise((done) => setTimeout(done, 1000 * wait));
    }
  }
}

const wanted = new WeakMap(); // image → the address of its next picture

/** Let `image` show what lies at `url`. An <img> sends no key, so it is given what was fetched. */
export async function load(image, url) {
  wanted.set(image, url);
  if (!key.get() || url.startsWith("blob:")) {
    image.src = address(url);
    return;
  }
  const fetched = await ask(url).then((response) => response.blob()).catch(() => null);
  if (wanted.get(image) !== url) return; // it is to show another one by now
  if (!fetched) {
    image.dispatchEvent(new Event("error"));
    return;
  }
  const local = URL.createObjectURL(fetched);
  const release = () => URL.revokeObjectURL(local);
  image.addEventListener("load", release, { once: true });
  image.addEventListener("error", release, { once: true });
  image.loading = "eager"; // it is here already
  image.src = local;
}
