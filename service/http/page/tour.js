// What the page can do, in four steps, until the visitor has seen them once.

import { el } from "./elements.js";
import { t } from "./language.js";
import { remember } from "./memory.js";

const SEEN = "vouch-tour"; // remembered once the tour has ended, for good; `page.js` reads it

const STEPS = [
  ["#drop-zone", t`Choose a photo`, t`Drop it anywhere, paste it, or try one of the samples. Several photos make a batch.`],
  ["#legend-list", t`Read the answer`, t`It begins with one of the five verdicts below. “Match” is shown only within the guaranteed error.`],
  ["[data-testid=open-browse]", t`Look through the gallery`, t`“Browse gallery” lists all items or shows them on a map, and exports those that you select.`],
  ["[data-testid=open-report]", t`Check how accurate it is`, t`The accuracy report shows how often answers are right. Your decisions in the review queue keep it up to date.`],
];

/** Show the tour at the beginning of `place`, above what a visitor sees before the first answer. */
export function showTour(place) {
  let step = 0;
  const heading = el("h2", { id: "tour-title" });
  const text = el("p", {});
  const back = el("button", { type: "button", onclick: () => go(step - 1) }, t`Back`);
  const next = el("button.primary", { type: "button", "data-testid": "tour-next", onclick: () => go(step + 1) });
  const skip = el("button.link", { type: "button", "data-testid": "tour-skip", onclick: end }, t`Skip the tour`);
  const tour = el("section.tour", { "aria-labelledby": "tour-title", "data-testid": "tour" },
    el("div", { "aria-live": "polite" }, heading, text), el("p.steps", {}, back, next, skip));
  tour.addEventListener("keydown", ({ key }) => { if (key === "Escape") end(); });

  function point() {
    for (const node of document.querySelectorAll(".toured")) node.classList.remove("toured");
    if (tour.isConnected) document.querySelector(STEPS[step][0])?.classList.add("toured");
  }

  function go(to) {
    if (to === STEPS.length) return end();
    step = to;
    const [, title, words] = STEPS[step];
    heading.textContent = t`${step + 1} of ${STEPS.length}: ${title}`;
    text.textContent = words;
    back.disabled = step === 0;
    next.textContent = step === STEPS.length - 1 ? t`Done` : t`Next`;
    skip.hidden = step === STEPS.length - 1;
    point();
  }

  function end() {
    remember(SEEN, "done");
    const focused = tour.contains(document.activeElement);
    tour.remove();
    point();
    if (focused) document.getElementById("file-input").focus();
  }

  place.prepend(tour);
  go(0);
}
