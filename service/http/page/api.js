// Asking the API, with a key where the service wants one.

import { t } from "./language.js";

const KEY = "vouch-key"; // in sessionStorage: this tab alone, and only while it is open

let service = location.origin;
let connected = false;

/** Ask the service at `url` from now on. A document asks one: its keys and its decisions belong
 * to that. */
export function connect(url) {
  const { href } = new URL(url, document.baseURI);
  if (connected && href !== service) {
    throw new Error(`This document asks ${service} already; it cannot ask ${href} too.`);
  }
  [service, connected] = [href, true];
}

/** The whole address of what the service calls `path`. */
export const address = (path) => new URL(path, service).href;

let kept = null; // where the browser keeps nothing, such as in a frame

export const key = {
  get: () => { try { return sessionStorage.getItem(KEY); } catch { return kept; } },
  set: (text) => { try { sessionStorage.setItem(KEY, text); } catch { kept = text; } },
  forget: () => { try { sessionStorage.removeItem(KEY); } catch { kept = null; } },
};

export class Problem extends Error {
  constructor(problem, retryAfter) {
    super(problem.title);
    this.problem = problem;
    this.retryAfter = retryAfter;
  }
}

/** A part of this page, once it has come. A browser asks once for it, until the page is reloaded. */
export const arrived = (module) => module.catch(() => {
  throw new Problem({
    title: t`The service cannot be reached`,
    detail: t`A part of this page did not come.`,
    remedy: t`Check that the service is running, then reload the page.`,
  });
});

const unreadable = (response) =>
  new Problem({
    status: response.status,
    title: response.ok ? t`The answer could not be read` : t`The service answered ${response.status}`,
    detail: t`What came back is not what this page expects. A proxy in between may have answered.`,
  });

/** Whether the files of a form can be read: to a browser those that cannot look like no network. */
async function isReadable(body) {
  const files = body instanceof FormData ? [...body.values()].filter((one) => one instanceof Blob) : [];
  return Promise.all(files.map((file) => file.slice(0, 1).arrayBuffer())).then(() => true, () => false);
}

export async function ask(url, options = {}) {
  const sent = key.get();
  const headers = { ...options.headers, ...(sent && { Authorization: `Bearer ${sent}` }) };
  let response;
  try {
    response = await fetch(address(url), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!await isReadable(options.body)) {
      throw new Problem({
        title: t`The file cannot be read`,
        detail: t`It was changed or moved since it was chosen, or it is a folder.`,
        remedy: t`Choose it again.`,
      });
    }
    throw new Problem({
      status: 0,
      title: t`The service cannot be reached`,
      detail: t`No answer came back; nothing was searched.`,
    });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  if (!problem?.title) throw unreadable(response);
  throw new Problem({ status: response.status, ...problem }, response.headers.get("retry-after"));
}

export async function askJson(url, options) {
  const response = await ask(url, options);
  return response.json().catch((error) => {
    throw error.name === "AbortError" ? error : unreadable(response);
  });
}

/** The answer to an image; `options` are those of a search. */
export function searchWith(gallery, blob, name, options = {}, signal = undefined) {
  const body = new FormData();
  body.append("image", blob, name);
  for (const [option, value] of Object.entries(options)) body.append(option, value);
  const url = `/v1/galleries/${encodeURIComponent(gallery)}/search`;
  return askJson(url, { method: "POST", body, signal });
}

/** Whether the visitor's key may change galleries; true where the service does not say. */
export const mayWrite = () => askJson("/v1/usage")
  .then(({ scope }) => scope === "write" || scope === "admin", () => true);

const wanted = new WeakMap(); // image → the address of what it is to show

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
