// The page itself: what is around its search.

import { connect } from "./api.js";
import { el } from "./elements.js";
import { LANGUAGES, language, speak, t } from "./language.js";
import { remembered } from "./memory.js";
import { Search } from "./search.js";
import { wanted } from "./wanted.js";

// Styles that the first view does not need; they are fetched for the first answer or dialog.
const LATE = ["batch/batch", "accuracy/accuracy", "browse/browse", "collect/collect", "filters/filters", "look/look"];

connect(new URL("..", import.meta.url).href); // the service may be below a path prefix
let styles = null;
wanted.styled = () => (styles ??= Promise.all(LATE.map((name) => new Promise((done) => {
  const href = new URL(`${name}.css`, import.meta.url).href;
  document.head.append(el("link", { rel: "stylesheet", href, onload: done, onerror: done }));
}))));
document.documentElement.lang = language;
const chosen = document.getElementById("language");
chosen.replaceChildren(...Object.entries(LANGUAGES).map(([tag, name]) =>
  el("option", { value: tag, lang: tag, selected: tag === language }, name)));
chosen.onchange = () => speak(chosen.value);

/** Where the address leads: a gallery's name, a room of it such as "batch", and what is meant there.
 *
 * @param {{ hash: string }} [address] */
function linked({ hash } = location) {
  const parts = hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return parts; // which leads nowhere; a message follows
  }
}

// Before the first answer, and only at the beginning: a visitor with a link wants what it leads to.
if (remembered("vouch-tour") === null && linked().length < 2) {
  import("./tour.js").then(({ showTour }) => showTour(document.getElementById("legend")), () => {});
}

const search = new Search(document, {
  path: linked(),
  told: {
    titled: (words) => { document.title = words === null ? "Vouch" : t`${words} · Vouch`; },
    // The address of the view, to share and reload.
    went: (...path) => history.replaceState(null, "", `#/${path.map(encodeURIComponent).join("/")}`),
  },
});

// A link to another place, or the way back from it, leaves the page where it is.
// An answer that arrives now may have replaced the address already.
addEventListener("hashchange", ({ newURL }) => search.go(linked(new URL(newURL))));
