// The parts of one answer, from the verdict down to the raw JSON.

import { address, arrived, filled, key } from "./api.js";
import { copy, el, glyph, picture, svg } from "./elements.js";
import { t } from "./language.js";
import { passes, reasonOf } from "./problem.js";
import { said, saidParts } from "./service_texts.js";
import {
  NBSP, QUERIES, VERDICTS, absentSentence, brief, count, fixed, isNumber, outlierSentence, percent,
  pictureSentence,
  uncertaintySentence,
} from "./words.js";

const SHOWN_OF_SET = 6;

/** How a verdict is worded; one that this page does not know yet speaks for itself. */
export const verdictOf = ({ verdict }) => VERDICTS[verdict] ??
  { word: verdict, says: () => "", heading: t`Results by similarity` };

/** The answer with the verdict that follows from the visitor's own line, where a line can decide:
 * between match and not sure, of ordinary images and by a calibration that holds.
 *
 * @param {Api.SearchAnswer} answer
 * @param {number | null} line
 * @returns {Api.SearchAnswer & { line?: number }} */
export function byLine(answer, line) {
  const { verdict, results: [first], bundle: { calibration } } = answer;
  const decides = ["match", "ambiguous", "no_match"].includes(verdict) &&
    ["valid", "drifting"].includes(calibration.status) && isNumber(first?.match_probability);
  if (!isNumber(line) || !decides) return answer;
  const above = first.match_probability >= line;
  return { ...answer, line, verdict: above ? "match" : verdict === "match" ? "ambiguous" : verdict };
}

/** What to show of `answer`; `question` is the image or the text of the query, whose `words` are
 * `PHOTO_WORDS` or others with the same names; `queries` is what the gallery was calibrated with, `look` looks closely at the result of a place, `edit` crops the
 * question; `line` is the probability from which the visitor wants a match, null for the gallery's
 * own; `more` gives the page of results after a cursor; `options` of the search are chosen with
 * `choose`; `mayDecide`: the visitor may review answers; `why` remembers from one answer to the next whether its reasons are open.
 *
 * @param {Api.SearchAnswer} served */
export function answerParts(served, question, given) {
  const tools = { words: PHOTO_WORDS, mayDecide: true, ...given };
  const { look, edit, line, words, options } = tools;
  const answer = { ...byLine(served, line), filtered: "filter" in options };
  const verdict = words.verdictOf(answer);
  const { query, bundle: { calibration } } = answer;
  return [
    verdictPanel(answer, verdict, words.asked(answer, question)),
    isNumber(answer.line) ? el("p.note", { "data-testid": "own-verdict" },
      t`By the line that you drew. The service itself says: ${words.verdictOf(served).word}.`) : "",
    el("p.actions", {},
      answer.results.length > 0 && el("button.primary", {
        type: "button", onclick: () => look(0), "data-testid": "look",
      }, t`Compare and decide`),
      question.blob && el("button", { type: "button", onclick: edit, "data-testid": "edit" }, t`Crop & rotate`),
      el("span.note", { role: "status", "data-testid": "decision" })),
    tools.mayDecide ? auditPart(answer) : "",
    calibration.status === "stale"
      ? el("p.warning", {}, el("b", {}, t`Out of date. `), saidParts(calibration.reason)) : "",
    calibration.status === "drifting"
      ? el("p.warning", { "data-testid": "drifting" }, el("b", {}, t`Not guaranteed. `), saidParts(calibration.reason)) : "",
    withheldPart(answer),
    ...(query.image ?? query.text).warnings.map((text) => el("p.warning", {}, el("b", {}, t`Note. `), said(text))),
    neighbourPart(answer, verdict, tools),
    whyPart(answer, verdict, tools),
    detailPart(served, question, tools.roundTrip),
  ];
}

const caption = (title, small) => el("figcaption", {}, title, el("small", {}, small));

/** How an answer to a photograph is worded. */
export const PHOTO_WORDS = {
  verdictOf,
  asked: ({ query: { image } }, { preview }) => el("figure", {}, picture(preview, t`Your photo`),
    caption(t`Your photo`, `${image.format} ${image.width}${NBSP}×${NBSP}${image.height}`)),
  isTypical: t`Typical photo? `,
  outlierSentence,
  absentSentence,
  calibratedWith: (n, queries) =>
    t`This gallery was calibrated with ${n} ${queries}. Each small dot stands for 2 % of them; the large dot is your photo.`,
};

/** The pictures and the label first, then the verdict in words.
 *
 * @param {Api.SearchAnswer} answer */
function verdictPanel(answer, { word, says, shows }, asked) {
  const { verdict, results: [first] } = answer;
  const name = first && brief(first.label ?? first.id);
  return el("div.verdict", { "data-testid": "verdict", "data-verdict": verdict },
    el("div.pair", {}, asked,
      shows && first ? el("figure", {}, picture(first.thumbnail_url, t`Item ${name}`),
        caption(el("b", { dir: "auto" }, name), first.label === null ? t`first result` : first.id)) : ""),
    el("div.says", {}, el("h2", {}, glyph(verdict), word), el("p", {}, says(answer)), rollUpPart(answer)));
}

/** The parent label of an ambiguous query, where labels have parents.
 *
 * @param {Api.SearchAnswer & { line?: number }} answer */
function rollUpPart({ verdict, roll_up: rolled, line }) {
  if (!rolled || verdict !== "ambiguous" || isNumber(line)) return "";
  return el("p", { "data-testid": "roll-up" },
    t`Not sure which, but “${brief(rolled.label)}” with probability ${percent(rolled.probability)}.`);
}

/** What is not guaranteed, where the calibration promises too little.
 *
 * @param {Api.SearchAnswer} answer */
function withheldPart({ reason, verdict, guaranteed, bundle: { calibration } }) {
  if (!reason || reason === calibration.reason) return "";
  return el("p.warning", { "data-testid": "withheld" },
    el("b", {}, verdict !== "match" ? t`No confident match is possible. ` : guaranteed ? "" : t`Not guaranteed. `), saidParts(reason));
}

/** Asks for a review of an answer that was drawn at random.
 *
 * @param {Api.SearchAnswer} answer */
function auditPart(answer) {
  const { audit, results: [first] } = answer;
  if (!audit || !first) return "";
  const heard = el("span", { role: "status" });
  const button = (word, correct) => {
    const node = el("button", { type: "button" }, word);
    node.onclick = async () => {
      if (node.ariaDisabled) return;
      // One answer after the other. Disabled outright, a button would lose the focus.
      for (const one of buttons) one.ariaDisabled = "true";
      heard.textContent = await arrived(import("./look/decisions.js"))
        .then(({ review }) => review(answer, first, correct))
        .then(() => t` Thank you.`, (error) => ` ${reasonOf(error)}`);
      for (const one of buttons) one.ariaDisabled = null;
    };
    return node;
  };
  const buttons = [button(t`Yes`, true), button(t`No`, false)];
  return el("p.note.audit", { "data-testid": "audit" },
    t`This answer was drawn at random for review. Is the first result right? `, buttons, heard);
}

const DOTS = 50;

/** The query as a large dot among small ones, each of which stands for 2 % of the calibration
 * queries: from good (left) to bad (right), places in 0..1, those past `limit` marked. */
function among(position, left, right, limit = 1) {
  const at = (x) => `${(100 * Math.min(1, Math.max(0, x))).toFixed(1)}%`;
  const dot = (_, i) => svg("circle", {
    class: (i + 0.5) / DOTS > limit ? "beyond" : "other", cx: at((i + 0.5) / DOTS), cy: 12, r: 2.5,
  });
  const drawing = svg("svg", { class: "scale" }, ...Array.from({ length: DOTS }, dot));
  if (limit < 1) drawing.append(svg("line", { class: "limit", x1: at(limit), x2: at(limit), y1: 3, y2: 21 }));
  if (position !== null) drawing.append(svg("circle", { class: "query", cx: at(position), cy: 12, r: 8 }));
  return el("div", { "aria-hidden": "true" }, drawing,
    el("p.ends", {}, el("span", {}, left), el("span", {}, right)));
}

/** The statistics behind the verdict.
 *
 * @param {Api.SearchAnswer} answer */
function whyPart(answer, verdict, { words, queries, why }) {
  const { query, bundle: { calibration: { status, n_queries: n } } } = answer;
  return el("details.why", {
    "data-testid": "why", open: why.open, ontoggle: ({ target }) => { why.open = target.open; },
  },
  el("summary", {}, t`Why?`),
  el("div.evidence", {}, outlierPart(query.ood, words), uncertaintyPart(query.uncertainty, n),
    nothingPart(answer, verdict, words)),
  setPart(answer, verdict),
  status !== "missing" ? el("p.footnote", {},
    words.calibratedWith(count(n), QUERIES[queries] ?? t`queries`)) : "");
}

/** @param {Api.Uncertainty} uncertainty */
function uncertaintyPart(uncertainty, nQueries) {
  const { percentile, level, aleatoric } = uncertainty;
  const state = pictureSentence(aleatoric);
  return el("section", { "data-testid": "uncertainty" },
    el("h3", {}, t`Uncertainty `, el("b", {}, t([level ?? "unknown"]))),
    among(isNumber(percentile) ? percentile / 100 : null, t`certain`, t`uncertain`),
    el("p", {}, uncertaintySentence(uncertainty, nQueries)),
    state && el("p", {}, state));
}

/** @param {Api.OutOfDistribution} ood */
function outlierPart(ood, words) {
  const { p_value: p, alpha, flag } = ood;
  const known = isNumber(p);
  const word = !known || flag === null ? t`unknown` : flag ? t`no, unusual` : t`yes`;
  return el("section", { "data-testid": "ood" },
    el("h3", {}, words.isTypical, el("b", {}, word)),
    among(known ? 1 - p : null, t`typical`, t`unusual`, known ? 1 - alpha : 1),
    el("p", {}, words.outlierSentence(ood)));
}

/** How likely it is that nothing matches.
 *
 * @param {Api.SearchAnswer & { filtered?: boolean }} answer */
function nothingPart({ no_match_probability: nothing, absent, filtered }, { withholds }, words) {
  if (!isNumber(nothing) || !absent || withholds) return "";
  return el("section", { "data-testid": "nothing" },
    el("h3", {}, filtered ? t`Chance that no filtered item matches ` : t`Chance that it is not in the gallery `, el("b", {}, percent(nothing))),
    bar(nothing),
    el("p", {}, words.absentSentence(absent)));
}

function bar(share) {
  const fill = el("span");
  fill.style.setProperty("inline-size", `${100 * share}%`);
  return el("div.bar", { "aria-hidden": "true" }, fill);
}

/** How few items it takes to be sure enough of a true match among them.
 *
 * @param {Api.SearchAnswer} answer */
function setPart({ result_set: chosen }, { withholds }) {
  if (!chosen || withholds) return "";
  if (!chosen.promised_for.length) {
    return el("p.note", { "data-testid": "set" }, saidParts(chosen.reason));
  }
  const names = chosen.items.slice(0, SHOWN_OF_SET).map(({ id, label }) => t`“${brief(label ?? id)}”`);
  const more = chosen.items.length - names.length;
  return el("p.note", { "data-testid": "set" },
    t`If the gallery has a match, then with probability ${percent(chosen.coverage)} `,
    chosen.items.length === 1 ? t`it is ` : t`one of these is: `,
    el("b", {}, names.join(", ")), more ? t` and ${more} more.` : ".",
    chosen.promised ? "" : t` Not for every label: ${said(chosen.reason)}`);
}

/** @type {Record<string, [unknown, () => string]>} */
export const CHOICES = { // choices for a list, as options of the search
  group_by: ["label", () => t`One of each label`],
  duplicate_similarity: [0.98, () => t`Without near duplicates`],
};

/** @param {Api.SearchAnswer & { filtered?: boolean }} answer */
function neighbourPart(answer, wording, { look, more, options, choose }) {
  const { results, verdict, filtered } = answer;
  const { heading, note = "", subordinate, withholds } = wording;
  const shown = [...results];
  const list = el("ol", {});
  const show = () => list.replaceChildren(...byLabel(shown).map((places) =>
    card(places, shown, { vouched: verdict === "match" && places[0] === 0, withholds, look: (place) => look(place, shown) })));
  show();
  let cursor = answer.next_cursor;
  const further = el("button", { type: "button", "data-testid": "more", hidden: cursor === null,
    onclick: async () => {
      further.disabled = true;
      const page = await more(cursor).catch((error) => {
        further.textContent = reasonOf(error);
        further.disabled = !passes(error.problem?.status); // a cursor that is refused is not taken later
        further.focus(); // which it lost when it was disabled
        return null;
      });
      if (!page) return;
      const before = shown.length;
      shown.push(...page.results);
      show();
      list.querySelector(`[data-place="${before}"]`)?.focus();
      cursor = page.next_cursor;
      further.textContent = t`More results`;
      further.hidden = cursor === null;
      further.disabled = false;
    } }, t`More results`);
  const choices = Object.entries(CHOICES).map(([name, [value, words]]) => el("label", {},
    el("input", { type: "checkbox", checked: name in options, "data-testid": name,
      onchange: ({ target }) => choose(name, target.checked ? value : null) }), ` ${words()}`));
  return el(subordinate ? "section.neighbours.subordinate" : "section.neighbours", {},
    el("h3", {}, results.length ? heading : filtered ? t`No item passes the filter` : t`The gallery returned no items`),
    note && el("p.note", {}, note),
    list, el("p.actions", {}, further), el("p.choices", {}, choices));
}

/** The places of the results of each label, in the order of the first ones; a result without a label
 * is a group.
 *
 * @param {Api.Result[]} results */
function byLabel(results) {
  const groups = new Map();
  results.forEach(({ label }, place) => {
    const key = label ?? place;
    groups.set(key, [...groups.get(key) ?? [], place]);
  });
  return [...groups.values()];
}

const STACKED = 11; // smaller pictures of a card

/** A card: the pictures of one label, which have its probability in common.
 *
 * @param {number[]} places
 * @param {Api.Result[]} results */
function card(places, results, { vouched, withholds, look }) {
  const [item] = places.map((place) => results[place]);
  const n = places.length;
  const title = item.label ?? item.id;
  const opens = (place, i) => {
    const words = n > 1 ? t`Compare with ${title} (${i + 1} of ${n})` : t`Compare with ${title}`;
    return el("button.open", {
      type: "button", onclick: () => look(place), "aria-label": words, "data-place": place,
    }, picture(results[place].thumbnail_url, t`Item ${title}`, true));
  };
  const [lead, ...others] = places.map(opens);
  const probability = withholds ? null : item.match_probability;
  const scalars = n > 1 ? [] : Object.entries(item.metadata ?? {})
    .filter(([, value]) => ["string", "number"].includes(typeof value)).slice(0, 2);
  return el(vouched ? "li.vouched" : "li", { "data-testid": "neighbour" }, lead,
    others.length ? el("div.stack", {}, others.slice(0, STACKED),
      others.length > STACKED && el("small", {}, `+${count(others.length - STACKED)}`)) : "",
    el("p.name", {}, el("b", { title, dir: "auto" }, title)),
    n > 1 ? el("p.id", {}, t`${count(n)} {0|photo|photos}`)
      : item.label === null ? "" : el("p.id", { title: item.id }, item.id),
    scalars.map(([key, value]) => el("p.meta", { title: `${key}: ${value}` }, `${key}: ${value}`)),
    isNumber(probability) ? el("p.probability", {}, t`${percent(probability)} match`) : "",
    isNumber(probability) ? bar(probability) : "");
}

/** The same question for a shell. A sample is fetched from where it lies. */
function curlCommand(gallery, { name, sampleUrl, text }) {
  const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const curl = key.get() ? 'curl -s -H "Authorization: Bearer $VOUCH_KEY"' : "curl -s";
  const target = shell(address(filled(`/v1/galleries/{gallery}/search${text ? "/text" : ""}`, { path: { gallery } })));
  if (text) return `${curl} --json ${shell(JSON.stringify({ text }))} ${target}`;
  if (sampleUrl) {
    const source = shell(address(sampleUrl));
    return `${curl} ${source} |\n  ${curl} -F 'image=@-;filename=sample' ${target}`;
  }
  const quoted = name.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
  return `${curl} -F ${shell(`image=@"${quoted}"`)} ${target}`;
}

function block(title, text, testid) {
  const button = el("button", { type: "button", "aria-label": t`Copy: ${title}` }, t`Copy`);
  button.onclick = () => copy(text, button);
  return [el("h4", {}, title, button), el("pre", { tabIndex: 0, "data-testid": testid }, text)];
}

/** @param {Api.SearchAnswer} answer */
function detailPart(answer, question, roundTrip) {
  const { bundle, cache, request_id: requestId, timing_ms: timing } = answer;
  const pair = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const ms = (value) => `${fixed(value, value < 10 ? 1 : 0)}${NBSP}ms`;
  const stages = Object.entries(timing).filter(([name]) => name !== "total");
  const { calibration } = bundle;
  return el("details", { "data-testid": "details" },
    el("summary", {}, t`Details `, el("span", {}, t`${ms(timing.total)}, cache ${cache}`)),
    el("dl", {},
      pair(t`Time`, t`${ms(timing.total)} in the service, ${ms(roundTrip)} round trip`),
      pair(t`Stages`, stages.map(([name, value]) => `${name} ${ms(value)}`).join(", ")),
      pair(t`Cache`, cache),
      pair(t`Calibration`, t([calibration.status]) + (calibration.n_queries
        ? t`, ${count(calibration.n_queries)} queries` : "")),
      pair(t`Bundle`, el("code", {}, bundle.id)),
      pair(t`Request`, el("code", {}, requestId))),
    block(t`The same query from a shell`, curlCommand(answer.gallery, question), "curl"),
    block(t`The whole answer`, JSON.stringify(answer, null, 2), "json"));
}
