// The history of a gallery's calibrations: what each has measured, what the served one changed, and a way back.

import { askJson } from "../api.js";
import { el } from "../elements.js";
import { language, t } from "../language.js";
import { reasonOf } from "../problem.js";
import { saidParts } from "../service_texts.js";
import { QUERIES, count, isNumber, percent } from "../words.js";

const when = (time) => new Date(time).toLocaleString(language, { dateStyle: "medium", timeStyle: "short" });

const SHARES = [t`queries that get a match`, t`of these wrong`, t`error limit`];

/** What the served bundle changed, in one sentence; "" without one before it, or without numbers of both. */
export function changesSentence(served, before) {
  const [now, then] = [served?.calibration, before?.calibration];
  if (!now || !then) return "";
  const points = Math.round(100 * ((now.match_share ?? 0) - (then.match_share ?? 0)));
  const size = count(Math.abs(points));
  const changes = [
    points === 0 ? t`as many matches` : points === 1 ? t`1 point more matches` : points === -1 ? t`1 point fewer matches`
      : points > 0 ? t`${size} points more matches` : t`${size} points fewer matches`,
    now.max_error === then.max_error ? t`the error limit is unchanged`
      : t`error limit ${percent(now.max_error)}, before ${percent(then.max_error)}`,
    isNumber(served.n_items) && isNumber(before.n_items) && served.n_items !== before.n_items &&
      t`${count(served.n_items)} {0|item|items}, before ${count(before.n_items)}`,
  ].filter(Boolean).join("; ");
  return t`Compared with the calibration before: ${changes}.`;
}

/** What follows if another bundle is served. */
function consequence({ calibration: found, published_at: at, n_items: n }) {
  const promise = found
    ? t`${percent(found.match_share ?? 0)} of queries get a match, at most ${percent(found.max_error)} of these are wrong`
    : t`no probabilities and no matches`;
  return [
    t`From then on, all users get answers of ${when(at)}: ${count(n)} items; ${promise}.`,
    t` While it is in use, items that were added or changed since are not found. Nothing is deleted: you can return in the same way.`,
  ];
}

/** A section with the bundles of a gallery, the newest first. An administrator, who `mayDecide`, can serve
 * another one; then `switched` is called. */
export function historyPart(gallery, mayDecide, switched) {
  const path = { gallery: gallery.name };
  const place = el("section.history", { "data-testid": "history" });
  const show = (...parts) => place.replaceChildren(el("h3", {}, t`History of calibrations`), ...parts.filter(Boolean));
  const status = el("p.note", { role: "status" }, t`Loading…`);
  show(status);

  /** Ask before another bundle is served, in place of the `button`. */
  function confirm(bundle, button) {
    const serve = async () => {
      yes.disabled = true;
      const done = await askJson("/v1/galleries/{gallery}/bundles/{bundle_id}/activate", {
        method: "POST", path: { ...path, bundle_id: bundle.id },
      }).catch((error) => {
        status.textContent = reasonOf(error);
        cancel();
      });
      if (done) switched();
    };
    const cancel = () => {
      asked.replaceWith(button);
      button.focus();
    };
    const yes = el("button.danger", { type: "button", "data-testid": "serve-confirmed", onclick: serve }, t`Use this one`);
    const asked = el("div.asked", { "data-testid": "serve-asked" }, el("p", {}, consequence(bundle)),
      el("p.actions", {}, yes, el("button", { type: "button", onclick: cancel }, t`Cancel`)));
    button.replaceWith(asked);
    status.textContent = "";
    yes.focus();
  }

  function row(bundle, serving) {
    const { id, published_at: at, calibration: found, reason, release, n_items: n, n_labels: labels } = bundle;
    const button = mayDecide && id !== serving && !reason && el("button", {
      type: "button", "data-testid": "serve", onclick: ({ currentTarget }) => confirm(bundle, currentTarget),
    }, t`Use again`);
    const facts = [
      isNumber(n) && t`${count(n)} {0|item|items}`,
      isNumber(labels) && t`${count(labels)} {0|label|labels}`,
      found && t`calibrated with ${count(found.n_queries ?? 0)} ${QUERIES[found.queries] ?? t`queries`}`,
      release && t`built by Vouch ${release}`,
    ].filter(Boolean).join(", ");
    return el("tr", {},
      el("th", { scope: "row" }, when(at), id === serving && el("b.served", {}, t`in use`),
        facts && el("span.note", {}, facts), reason && el("span.warning", {}, saidParts(reason)), button),
      found ? [found.match_share, found.match_error, found.max_error].map((share, i) =>
        el("td", { "data-name": SHARES[i] }, isNumber(share) ? percent(share) : "–"))
        : el("td", { colSpan: 3 }, reason ? "–" : t`not calibrated`));
  }

  askJson("/v1/galleries/{gallery}/bundles", { path }).then(({ bundles, serving, refused }) => {
    const served = bundles.findIndex(({ id }) => id === serving);
    const sentence = changesSentence(bundles[served], bundles[served - 1]);
    status.textContent = "";
    show(
      sentence && el("p", { "data-testid": "changes" }, sentence),
      refused && el("p.warning", {}, saidParts(refused)),
      el("table", {},
        el("thead", {}, el("tr", {}, [t`published`, ...SHARES]
          .map((words) => el("th", { scope: "col" }, words)))),
        el("tbody", {}, bundles.map((bundle) => row(bundle, serving)).reverse())),
      status);
  }, (error) => { status.textContent = reasonOf(error); });
  return place;
}
