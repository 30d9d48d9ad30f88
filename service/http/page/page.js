// The page itself: what is around its search.

import { connect } from "./api.js";
import { el } from "./elements.js";
import { LANGUAGES, language, speak, t, translate } from "./language.js";
import { Search } from "./search.js";

// Of what is not seen at first; linked in the document they would keep its first sight waiting.
const LATE = ["batch/batch", "believe/believe", "browse/browse", "filters/filters", "look/look"];

connect(new URL("..", import.meta.url).href); // the service may be below a path prefix
document.head.append(...LATE.map((name) =>
  el("link", { rel: "stylesheet", href: new URL(`${name}.css`, import.meta.url).href })));
document.documentElement.lang = language;
const chosen = document.getElementById("language");
chosen.replaceChildren(...Object.entries(LANGUAGES).map(([tag, name]) =>
  el("option", { value: tag, lang: tag, selected: tag === language }, name)));
chosen.onchange = () => speak(chosen.value);

/** The gallery that a link to the page names; null where it names none that can be read. */
function linked() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    return null;
  }
}

// A link to another gallery, or the way back from it, leaves the page where it is.
addEventListener("hashchange", () => {
  const picker = document.getElementById("gallery-picker");
  const names = [...picker.options].map(({ value }) => value);
  const name = linked() ?? names[0];
  if (name === picker.value || !names.includes(name)) return;
  picker.value = name;
  picker.dispatchEvent(new Event("change"));
});

new Search(document, {
  name: linked(),
  told: {
    titled: (words) => { document.title = words === null ? "Vouch" : t`${words} · Vouch`; },
    picked: (name) => history.replaceState(null, "", `#${encodeURIComponent(name)}`),
  },
});
