// The page of Vouch: asks the public API and shows what it answers.

import { answerParts, byLine, verdictOf } from "./answer.js";
import { Problem, ask, askJson, key, searchWith } from "./api.js";
import { adviceOn, advicePanel } from "./ask/advice.js";
import { takeFiles } from "./ask/files.js";
import { el, glyph, picture } from "./elements.js";
import { LANGUAGES, language, speak, t, translateDocument } from "./language.js";
import {
  QUERIES, REMEDIES, VERDICTS, brief, count, decisionSentence, estimateSentence, isNumber, percent,
} from "./words.js";

const BUSY_AFTER = 150; // ms: a faster answer replaces the last one without a flicker

const state = {
  gallery: null, report: null, line: null, // `line`: the visitor's own, null for the gallery's
  options: {}, query: null, answer: null, retry: null, running: null,
};
const $ = (id) => document.getElementById(id);

// Asking.

const galleryUrl = (name) => `/v1/galleries/${encodeURIComponent(name)}`;

/** Run `task`, the only one at a time; what it throws is shown, and can be tried again. */
async function attempt(words, task) {
  state.running?.abort();
  const running = (state.running = new AbortController());
  const stopBusy = showBusy(words);
  state.retry = () => attempt(words, task);
  try {
    await task(running.signal);
  } catch (error) {
    if (running.signal.aborted) return;
    if (!(error instanceof Problem)) console.error(error);
    showProblem(error instanceof Problem ? error : new Problem({
      title: t`This page could not show the answer`, detail: String(error),
    }));
  } finally {
    if (state.running === running) {
      state.running = null;
      stopBusy();
    }
  }
}

/** Open the gallery that is picked; before that, fill the picker. */
async function openGallery(signal) {
  const picker = $("gallery-picker");
  if (!picker.options.length) {
    const { galleries } = await askJson("/v1/galleries", { signal });
    if (!galleries.length) {
      throw new Problem({
        title: t`No gallery is served yet`,
        detail: t`The service runs, but it has nothing to search in.`,
        remedy: t`Build a bundle with vouch-build, start the service with it, and reload.`,
      });
    }
    picker.append(...galleries.map(({ name, n_items: n }) =>
      el("option", { value: name }, t`${name} (${count(n)} items)`)));
    picker.closest(".picker").hidden = galleries.length < 2;
    const wanted = location.hash.slice(1);
    const linked = galleries.find(({ name }) => encodeURIComponent(name) === wanted);
    picker.value = (linked ?? galleries[0]).name;
  }
  const url = galleryUrl(picker.value);
  const [gallery, report] = await Promise.all(
    [url, `${url}/calibration`].map((one) => askJson(one, { signal })));
  showGallery(gallery, report);
  Object.assign(state, { report, line: null });
  state.gallery = { ...gallery, queries: report.queries, keeps: report.errors_over_time != null };
}

/** Open the picked gallery; a question that stands is asked there too. */
function open(words) {
  state.gallery = null;
  attempt(words, async (signal) => {
    await openGallery(signal);
    if (state.query) await search(signal);
  });
}

async function search(signal) {
  if (!state.gallery) await openGallery(signal);
  const { blob, name, unchecked } = state.query;
  if (unchecked) {
    const advice = await adviceOn(state.gallery.name, blob, name, signal);
    if (advice.length) return showAdvice(advice);
  }
  const started = performance.now();
  const answer = await searchWith(state.gallery.name, blob, name, state.options, signal);
  Object.assign(state, { answer, roundTrip: performance.now() - started });
  showAnswer();
}

/** Search with an image. What a person brings is looked at first, unless that was done. */
function query(blob, name, { sampleUrl = null, unchecked = false, original = blob } = {}) {
  if (state.query) URL.revokeObjectURL(state.query.preview);
  const preview = URL.createObjectURL(blob);
  state.query = { blob, name, sampleUrl, unchecked, original, preview };
  attempt(state.gallery ? t`Searching ${count(state.gallery.n_items)} items` : t`Searching`, search);
}

const querySample = ({ id, image_url: url }) =>
  attempt(t`Fetching the sample`, async (signal) => {
    const response = await ask(url, { signal });
    query(await response.blob(), `sample-${id}`, { sampleUrl: url });
  });

/** Search with many photographs, one after another. */
async function queryMany(files) {
  const { runBatch } = await import("./batch/batch.js");
  attempt(t`Opening the batch`, async (signal) => {
    if (!state.gallery) await openGallery(signal);
    state.batch?.stop();
    clearAnswer();
    showBatch(true);
    bringIntoView();
    state.batch = runBatch(files, state.gallery, $("batch-place"), { refused: showProblem });
  });
}

/** Ask the same question with another option; null leaves it out. */
function choose(name, value) {
  const { [name]: _, ...others } = state.options;
  state.options = value === null ? others : { ...others, [name]: value };
  attempt(t`Searching ${count(state.gallery.n_items)} items`, search);
}

/** Show the batch, or hide it behind a button while one photograph is asked about. */
function showBatch(visible) {
  $("batch-place").hidden = !visible;
  $("to-batch").hidden = visible || !$("batch-place").hasChildNodes();
}

const WITHOUT_IMAGE = {
  chosen: t`There is no image in what was chosen`,
  pasted: t`There is no image in what was pasted`,
  dropped: t`There is no image in what was dropped`,
};

function queryFiles(files, whence) {
  const images = files.filter(({ type }) => type.startsWith("image/"));
  if (images.length > 1) return queryMany(images);
  const file = images[0] ?? files[0];
  if (file) {
    const name = file.name || "pasted";
    if ($("crop-first").checked) edit(file, name);
    else query(file, name, { unchecked: true });
    return;
  }
  showProblem(new Problem({
    title: WITHOUT_IMAGE[whence],
    detail: t`Only image files can be searched with, not links or text.`,
    remedy: t`Save the image first, then drop or choose the file.`,
  }));
}

/** Crop or turn an image, then search with the part. The image itself stays to go back to. */
async function edit(original, name) {
  const { crop } = await import("./ask/crop.js");
  const part = await crop(original).catch(() => original); // which the service says why it refuses
  if (part) query(part, name, { original });
}

// Showing.

function announce(text) {
  $("announcer").textContent = text;
}

function clearAnswer() {
  $("problem-slot").replaceChildren();
  $("legend").hidden = true;
  $("result").hidden = true;
  $("result").replaceChildren();
  showBatch(false);
  document.title = "Vouch";
}

/** Show that work is under way, and for how long; return what ends it. */
function showBusy(words) {
  const started = performance.now();
  const tell = () => {
    const seconds = Math.floor((performance.now() - started) / 1000);
    $("busy-text").textContent = words + (seconds < 2 ? "…" : t`, ${seconds} s so far`);
  };
  $("result").setAttribute("aria-busy", "true");
  const shown = setTimeout(() => {
    clearAnswer();
    $("busy").hidden = false;
    if (state.query) bringIntoView();
    announce(`${words}.`);
  }, BUSY_AFTER);
  const ticking = setInterval(tell, 500);
  tell();
  const stop = () => {
    clearTimeout(shown);
    clearInterval(ticking);
    $("busy").hidden = true;
    $("result").removeAttribute("aria-busy");
    $("legend").hidden = $("result").hasChildNodes() || $("problem-slot").hasChildNodes() ||
      !$("batch-place").hidden;
  };
  state.running.signal.addEventListener("abort", stop);
  return stop;
}

/** Ask for a key, in place of whatever was to be shown; then go on with that. */
function showKeyForm({ detail }) {
  const wasRefused = key.get() !== null;
  key.forget();
  clearAnswer();
  const input = el("input", {
    type: "password", id: "key-input", autocomplete: "off", spellcheck: false,
    required: true, pattern: "\\s*[!-~]+\\s*", title: t`Letters, digits and signs of ASCII`,
    "data-testid": "key-input",
  });
  const send = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    clearAnswer();
    state.retry();
  };
  $("problem-slot").replaceChildren(
    el("form.problem", { "data-testid": "key-form", onsubmit: send },
      el("h2", {}, wasRefused ? t`That key is not accepted` : t`This service asks for a key`),
      wasRefused && el("p", {}, `${detail.split(". ")[0]}.`), // then how programs send one
      el("p.remedy", {}, el("label", { htmlFor: "key-input" }, t`API key`)),
      el("p.key", {}, input, el("button", { type: "submit" }, t`Use it`)),
      el("p.ids", {}, t`Kept in this tab alone, until you close it.`)));
  document.title = t`Key wanted · Vouch`;
  bringIntoView();
  input.focus({ preventScroll: true });
}

function showProblem({ problem, retryAfter }) {
  if (problem.status === 401) {
    showKeyForm(problem);
    return;
  }
  clearAnswer();
  const { status, title, detail, code, request_id: requestId } = problem;
  const wait = Number(retryAfter) > 0 ? t`Wait ${retryAfter} s, then try again.` : null;
  const canRetry = state.retry && ([0, 200, 408, 429].includes(status) || status >= 500);
  const remedy = problem.remedy ?? wait ?? REMEDIES[code] ?? REMEDIES[status] ??
    (status >= 500 && t`Not your image’s fault. If it lasts, tell whoever runs the service.`);
  const ids = [status > 0 && `HTTP ${status}`, code, requestId && t`request ${requestId}`];
  const idLine = ids.filter(Boolean).join(" · ");
  $("problem-slot").replaceChildren(
    el("div.problem", { "data-testid": "problem" },
      el("h2", {}, title),
      detail && el("p", {}, detail),
      remedy && el("p.remedy", {}, remedy),
      canRetry && el("button", { type: "button", onclick: () => state.retry() }, t`Try again`),
      idLine && el("p.ids", {}, idLine)));
  document.title = t`Problem · Vouch`;
  bringIntoView();
}

function showAdvice(sentences) {
  clearAnswer();
  const { blob, original, name } = state.query;
  $("problem-slot").replaceChildren(advicePanel(sentences, {
    anyway: () => query(blob, name, { original }),
    edit: () => edit(original, name),
    again: () => $("file-input").click(),
  }));
  bringIntoView();
}

function showGallery(gallery, report) {
  const { description, n_items: n, n_labels, labels = [], bundle, metrics, samples = [] } = gallery;
  const { status, n_queries: nQueries } = bundle.calibration;
  const queries = QUERIES[report.queries] ?? t`queries`;
  const estimate = report.absent ? estimateSentence(report.absent) : "";
  const recall = metrics?.recall_at_1;
  const more = n_labels - labels.length;
  const shown = labels.map(brief).join(", ");
  $("gallery-about").replaceChildren(
    el("p", { dir: "auto" }, description),
    el("p.facts", {}, t`${count(n)} items, `,
      status === "missing" ? el("strong", {}, t`not calibrated`)
        : t`calibrated on ${count(nQueries)} ${queries}`,
      status === "stale" && el("strong", {}, t`, which is out of date`),
      isNumber(recall) ? t`. First result right: ${percent(recall)}.` : "."),
    estimate && el("p.facts", { "data-testid": "estimate" }, estimate),
    labels.length ? el("p.facts", {}, more > 0
      ? t`Labels: ${shown} and ${count(more)} more.` : t`Labels: ${shown}.`) : "",
    el("button.link", { type: "button", onclick: openReport, "data-testid": "open-report" },
      t`How far can it be believed?`), " ",
    el("button.link", { type: "button", onclick: openGalleryItems, "data-testid": "open-browse" },
      t`Look through it`));
  $("sample-list").replaceChildren(...samples.map((sample) =>
    el("li", {}, el("button", {
      type: "button", "data-testid": "sample", "data-belongs": sample.belongs,
      onclick: () => querySample(sample),
    }, picture(sample.image_url, ""), el("span", {}, sample.caption,
      !sample.belongs && el("span.stranger", {}, t`does not belong`))))));
  $("samples").hidden = !samples.length;
}

function showAnswer() {
  const { answer, roundTrip, line } = state;
  const shown = byLine(answer, line);
  const { word, says } = verdictOf(shown);
  clearAnswer();
  $("result").replaceChildren(...answerParts(answer, state.query, {
    queries: state.gallery.queries, roundTrip, line, look: (place, items) => lookAt(answer, place, items),
    more: (cursor) => askJson(`${galleryUrl(state.gallery.name)}/search/next?${new URLSearchParams({ cursor })}`),
    options: state.options, choose,
    edit: () => edit(state.query.original, state.query.name),
  }));
  $("result").dataset.verdict = shown.verdict;
  looking ??= importLooking(); // while the answer is read
  $("result").hidden = false;
  announce(`${word}. ${says(shown)}`);
  document.title = `${word} · Vouch`;
  bringIntoView();
}

/** Show what the calibration measured, and let the visitor move the line. */
async function openReport() {
  const { believe } = await import("./believe/believing.js");
  const moved = (line) => {
    state.line = line;
    if ($("result").hasChildNodes() && state.answer) showAnswer();
  };
  believe(state.gallery, state.report, { line: state.line, moved });
}

async function openGalleryItems() {
  const { browse } = await import("./browse/browsing.js");
  browse(state.gallery);
}

let looking;

async function importLooking() {
  const module = await import("./look/looking.js");
  module.onDecision(({ entry }) => entry === state.query?.entry && showDecision(entry));
  return module;
}

/** Look closely at a result of `answer`, and decide. */
async function lookAt(answer, place, items = answer.results) {
  const { look } = await looking;
  const entry = (state.query.entry ??= { ...state.query, answer, said: new Map(), decision: null });
  look(entry, state.gallery, { place, items, closed: () => showDecision(entry) });
}

/** Say below the verdict what was decided. */
function showDecision({ decision }) {
  const slot = $("result").querySelector("[data-testid=decision]");
  const failed = decision?.problem ? ` ${decision.problem}` : "";
  if (slot) slot.textContent = decision ? decisionSentence(decision) + failed : "";
}

function bringIntoView() {
  const { top } = $("answer").getBoundingClientRect();
  if (top >= 0 && top < innerHeight / 2) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("answer").scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}

// Wiring.

function wire() {
  translateDocument();
  $("language").replaceChildren(...Object.entries(LANGUAGES).map(([tag, name]) =>
    el("option", { value: tag, lang: tag, selected: tag === language }, name)));
  $("language").addEventListener("change", ({ target }) => speak(target.value));
  $("legend-list").replaceChildren(...Object.entries(VERDICTS).map(([name, { word, legend }]) =>
    el("div", { "data-verdict": name }, el("dt", {}, glyph(name), word), el("dd", {}, legend))));
  $("to-batch").addEventListener("click", () => {
    clearAnswer();
    showBatch(true);
  });
  $("cancel").addEventListener("click", () => {
    state.running?.abort();
    state.running = null;
    announce(t`Cancelled.`);
  });
  $("gallery-picker").addEventListener("change", ({ target }) => {
    history.replaceState(null, "", `#${encodeURIComponent(target.value)}`);
    open(t`Opening ${target.value}`);
  });
  takeFiles(queryFiles);
  open(t`Looking up the galleries`);
}

wire();
