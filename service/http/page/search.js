// A search and its answer, in the page or in an element of another page: asks the public
// API, one question at a time, and shows what it answers.

import { CHOICES, PHOTO_WORDS, answerParts, byLine } from "./answer.js";
import { Problem, arrived, ask, askJson, permissions, searchFor } from "./api.js";
import { adviceOn, advicePanel } from "./ask/advice.js";
import { isImage, pathOf, takeFiles, withoutImage } from "./ask/files.js";
import { el, glyph } from "./elements.js";
import { filterBar } from "./filters/bar.js";
import { keepQuery, queryOf, sizeOfBatch } from "./kept.js";
import { emptyPart, galleryParts, sampleList } from "./gallery.js";
import { t, translate } from "./language.js";
import { problemOf, problemPanel } from "./problem.js";
import { wanted } from "./wanted.js";
import { VERDICTS, count, decisionSentence } from "./words.js";

const BUSY_AFTER = 150; // ms: a faster answer replaces the last one without a flicker
const OPENING_AFTER = 1000; // ms: a gallery that opens sooner moves nothing on the page

/** @param {{ name: string, n_items: number | null }} gallery */
const pickedAs = ({ name, n_items: n }) => (n === null ? name : t`${name} (${count(n)} {1|item|items})`);

/** What is decided on: the query with its last answer. In another gallery it is another query. */
function entryOf(query, answer) {
  const before = query.entry?.answer;
  if (before?.gallery === answer.gallery && before.query.id === answer.query.id) {
    return Object.assign(query.entry, { answer });
  }
  return (query.entry = { ...query, answer, decision: null });
}

export class Search {
  $; told; name; only; room; part; may; roundTrip;
  /** @type {Page.Gallery} */
  gallery = null;
  /** @type {Api.CalibrationReport} */
  report = null;
  line = null; // the visitor's own, null for the gallery's
  /** @type {Partial<Api.SearchForm>} */
  options = {};
  query = null;
  /** @type {Api.SearchAnswer} */
  answer = null; // the one that is shown
  retry = null;
  running = null;
  looking = null;
  opening = null;
  below = null; // the place below the dialogs
  why = { open: false }; // of the reasons below an answer

  /** `root` is the document, or the shadow root, that holds what `index.html` has in `main`. `told`
   * receives the events: `titled(words)`, `went(gallery, ...room)`, `answered(answer)`,
   * `decided(decision)`. `path` is where to begin: a gallery, and a room of it; `only`: there is no
   * other gallery.
   * Files are taken that are dropped on `target`, or pasted there. */
  constructor(root, { path = [], only = false, target = window, told = {} } = {}) {
    const [name = null, ...room] = path;
    Object.assign(this, { told, name, only, room, $: (id) => root.getElementById(id), part: root.querySelector(".vouch") });
    translate(root);
    this.$("legend-list").replaceChildren(...Object.entries(VERDICTS).map(([verdict, words]) =>
      el("div", { "data-verdict": verdict },
        el("dt", {}, glyph(verdict), words.word), el("dd", {}, words.legend))));
    this.$("to-batch").onclick = () => this.askMany([]);
    this.$("cancel").onclick = () => {
      this.running?.abort();
      this.announce(t`Cancelled.`);
    };
    this.$("gallery-picker").onchange = ({ target: { value } }) => this.go([value]);
    this.release = takeFiles(this.$, target, this.part, (files, link, how) => this.take(files, link, how));
    this.open(t`Looking up the galleries`);
  }

  /** Release everything: the element has left its page. */
  end() {
    this.running?.abort();
    this.batch?.stop();
    this.release();
    this.begin(null);
  }

  // Asking.

  /** Run `task`, the only one at a time; what it throws is shown, and can be tried again. */
  async attempt(words, task) {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const stopBusy = this.showBusy(words);
    this.retry = () => this.attempt(words, task);
    try {
      await task(running.signal);
    } catch (error) {
      if (!running.signal.aborted) this.showProblem(problemOf(error));
    } finally {
      if (this.running === running) {
        this.running = null;
        stopBusy();
      }
    }
  }

  /** Open the gallery that is picked; before that, fill the picker. `asked`: for something to search with. */
  async openGallery(signal, asked = true) {
    const picker = this.$("gallery-picker");
    if (!picker.options.length) {
      const served = (await askJson("/v1/galleries", { signal })).galleries;
      const galleries = this.only ? served.filter(({ name }) => name === this.name) : served;
      if (!galleries.length) {
        throw this.only ? new Problem({ title: t`There is no gallery “${this.name}”`, detail: "" }) : await this.firstRoom(asked);
      }
      picker.append(...galleries.map((one) => el("option", { value: one.name }, pickedAs(one))));
      this.name ??= galleries[0].name;
      picker.value = this.name; // one that is not there leaves it empty
      picker.closest(".picker").hidden = picker.value && galleries.length < 2;
    }
    if (!picker.value) {
      const names = [...picker.options].map(({ value }) => t`“${value}”`).join(", ");
      throw new Problem({
        title: t`There is no gallery “${this.name}”`,
        detail: t`Galleries of this service: ${names}.`,
        remedy: t`Choose one of them.`,
      });
    }
    const path = { gallery: picker.value };
    const [gallery, report, may] = await Promise.all([
      askJson("/v1/galleries/{gallery}", { path, signal }),
      askJson("/v1/galleries/{gallery}/calibration", { path, query: { curve: false }, signal }), permissions(),
    ]);
    const { filter: _, ...options } = this.options; // its fields are another gallery's
    const stores = report.errors_over_time != null;
    Object.assign(this, { report, may, line: null, options });
    this.gallery = { ...gallery, queries: report.queries, maxError: report.max_error, stores, keeps: stores && may.decide };
    this.showGallery();
  }

  /** What is shown of a service without galleries, as a problem of any search. */
  async firstRoom(asked) {
    const [{ firstRoom }, { admin }] = await Promise.all([arrived(import("./collect/creating.js")), permissions()]);
    const panel = firstRoom({
      admin, asked, heading: this.$("ask-title").localName,
      made: (name) => {
        this.room = ["add"];
        this.renew(name);
      },
    });
    return new Problem({ title: t`Create the first gallery`, panel });
  }

  /** Go to a place: a gallery, and a room of it. Dialogs of the place before are closed. */
  go([name = this.$("gallery-picker").options[0]?.value, ...room]) {
    this.left?.();
    for (const dialog of this.part.querySelectorAll("dialog[open]")) dialog.close();
    if (this.gallery && name === this.gallery.name) return this.enter(room);
    Object.assign(this, { name, room });
    this.$("gallery-picker").value = name;
    if (name) this.told.went?.(name, ...room);
    this.open(t`Opening ${name}`);
  }

  /** Open a room of the gallery. */
  enter([room = null, ...rest], gallery = this.gallery) {
    const rooms = {
      batch: () => this.askMany([]),
      query: () => this.askAgain(...rest),
      text: () => {
        if (!rest[0]) return;
        this.recall(rest.slice(1));
        this.askText(rest[0]);
      },
      report: () => this.show(() => this.openReport(gallery), room),
      items: () => this.show(() => this.openItems(gallery, room), room),
      map: () => this.show(() => this.openItems(gallery, room), room),
      "label-errors": () => this.show(() => this.openCheck(gallery, "label_errors"), room),
      "near-duplicates": () => this.show(() => this.openCheck(gallery, "duplicates"), room),
      decisions: () => this.show(() => this.openDecisions(gallery), room),
      guarantees: () => this.show(() => this.openGuarantees(gallery), room),
      add: () => this.show(() => this.openAdding(gallery), room),
      settings: () => this.show(() => this.openSettings(gallery), room),
      key: () => this.show(() => this.openKey(), room),
      review: () => this.show(() => this.openReview(gallery), room),
      unknown: () => this.show(() => this.openUnknown(gallery), room),
    };
    if (room === null) return;
    if (Object.hasOwn(rooms, room)) return rooms[room]();
    this.showProblem(new Problem({
      title: t`This address leads nowhere`,
      detail: t`The gallery “${gallery.name}” has no page “${room}”.`,
      remedy: t`Use the links on this page.`,
    }));
  }

  /** Say where the visitor is. */
  went(...room) {
    this.at = room;
    this.told.went?.(this.gallery?.name ?? this.name, ...room);
  }

  /** Open what a button asks for, as the `room` of that name, until its dialog is closed. What goes
   * wrong is shown above the answer, which stays. Until it is open, another click on the `button` is
   * the second of a double click. */
  async show(opened, room = null, button = room) {
    const { gallery, opening } = this;
    if (button !== null && opening?.button === button && opening.gallery === gallery) return;
    const mine = (this.opening = { button, gallery });
    const replaces = this.part.querySelector("dialog[open]") !== null;
    const late = setTimeout(() => {
      this.part.classList.add("opening");
      this.announce(t`Loading…`);
    }, BUSY_AFTER);
    try {
      await opened();
    } catch (error) {
      const { problem } = problemOf(error);
      if (problem.status !== 401) this.$("problem-slot").replaceChildren(problemPanel(problem));
      else await this.showKeyForm(problem, () => this.show(opened, room, button));
      this.bringIntoView();
      return;
    } finally {
      clearTimeout(late);
      if (this.opening === mine) this.opening = null;
      if (this.opening === null) this.part.classList.remove("opening");
    }
    const dialog = room && this.part.querySelector("dialog[open]");
    if (!dialog) return;
    const before = (replaces ? this.below : this.at) ?? []; // the place below all dialogs
    this.below = before;
    this.went(room);
    const closed = () => {
      if (this.part.querySelector("dialog[open]")) return; // another one took its place
      if ([room, dialog.dataset.room ?? room].includes(this.at?.[0])) this.went(...before);
    };
    dialog.addEventListener("close", closed);
    this.left = () => { // for another address, which stays
      dialog.removeEventListener("close", closed);
      Object.assign(this, { at: before, left: null });
    };
  }

  /** Open the picked gallery; an open query is repeated there. */
  open(words) {
    this.gallery = null;
    this.attempt(words, async (signal) => {
      await this.openGallery(signal, false).catch((error) => {
        if (!signal.aborted) this.hideGallery(); // what is shown is of the one before
        throw error;
      });
      const room = this.room;
      this.room = [];
      if (this.query?.text && !this.gallery.text) {
        this.begin(null);
        this.clear();
      }
      if (room.length) this.enter(room); // which is a separate task
      else if (this.query) await this.search(signal);
    });
  }

  async search(signal) {
    if (!this.gallery) await this.openGallery(signal);
    const { blob, name, text, unchecked } = this.query;
    const styled = wanted.styled();
    if (text) this.textWords = (await arrived(import("./ask/text.js"))).TEXT_WORDS;
    if (unchecked) {
      const advice = await adviceOn(this.gallery.name, blob, name, signal);
      await styled;
      if (signal.aborted) return;
      if (advice.length) return this.showAdvice(advice);
    }
    const started = performance.now();
    const answer = await searchFor(this.gallery.name, this.query, this.options, signal);
    const roundTrip = performance.now() - started;
    await styled;
    if (signal.aborted) return;
    Object.assign(this, { answer, roundTrip });
    this.showAnswer();
    this.told.answered?.(this.answer);
    if (!this.told.went) return; // in another page, nothing is kept
    const choices = Object.keys(CHOICES).filter((one) => one in this.options);
    if (text) return this.went("text", text, ...choices);
    const { id } = this.answer.query;
    keepQuery(id, { blob, name }).catch(() => {});
    this.went("query", id, ...choices);
  }

  /** Set the options that an address names; the filter stays. */
  recall(choices) {
    const { filter } = this.options;
    const chosen = Object.entries(CHOICES).filter(([name]) => choices.includes(name)).map(([name, [value]]) => [name, value]);
    this.options = { ...(filter && { filter }), ...Object.fromEntries(chosen) };
  }

  /** Ask again with a photograph that this browser keeps, or else the service for its reviewers. */
  askAgain(id, ...choices) {
    const { gallery } = this;
    this.recall(choices);
    this.attempt(t`Fetching the picture`, async (signal) => {
      const before = await queryOf(id).catch(() => null);
      if (signal.aborted) return; // a newer query replaced it
      if (before) return this.ask(before.blob, before.name);
      const path = { gallery: gallery.name, query_id: id };
      const blob = gallery.keeps && await ask("/v1/galleries/{gallery}/review/{query_id}/image", { path, signal })
        .then((found) => found.blob(), () => null);
      if (signal.aborted) return;
      if (blob) return this.ask(blob, id.slice(0, 12));
      throw new Problem({
        title: t`The photo of this address is not kept`,
        detail: t`It is no longer in this browser or in the service.`,
        remedy: t`Choose the photo again.`,
      });
    });
  }

  searching() {
    return this.gallery ? t`Searching ${count(this.gallery.n_items)} {0|item|items}` : t`Searching`;
  }

  /** Search in words. */
  askText(text) {
    const input = this.$("text-input");
    if (input) input.value = text;
    this.begin({ text, name: text });
    this.attempt(this.searching(), (signal) => this.search(signal));
  }

  /** Begin another query; null for none. */
  begin(query) {
    if (this.query?.preview) URL.revokeObjectURL(this.query.preview);
    this.query = query;
  }

  /** Search with an image. What a person brings is looked at first, unless that was done. */
  ask(blob, name, { sampleUrl = null, unchecked = false, original = blob } = {}) {
    this.begin({ blob, name, sampleUrl, unchecked, original, preview: URL.createObjectURL(blob) });
    this.attempt(this.searching(), (signal) => this.search(signal));
  }

  askSample({ id, image_url: url }) {
    this.attempt(t`Fetching the sample`, async (signal) => {
      const response = await ask(url, { signal });
      this.ask(await response.blob(), `sample-${id}`, { sampleUrl: url });
    });
  }

  /** Search with the image at a link, where its site lets a page of another one read it. */
  askLink(link) {
    this.attempt(t`Fetching the picture`, async (signal) => {
      let allowed = true; // by the policy of this web page
      const refuse = () => { allowed = false; };
      document.addEventListener("securitypolicyviolation", refuse, { once: true });
      const blob = await fetch(link, { signal, credentials: "omit", referrerPolicy: "no-referrer" })
        .then((response) => (response.ok ? response.blob() : null), () => null);
      await new Promise((done) => setTimeout(done)); // the event comes first
      document.removeEventListener("securitypolicyviolation", refuse);
      if (signal.aborted) return;
      if (!blob?.type.startsWith("image/")) {
        throw new Problem({
          title: t`The link could not be fetched`,
          detail: allowed ? t`There is no picture at it, or its site lets no other page read it.`
            : t`The operator of this page has not allowed pictures of ${new URL(link).origin}.`,
          remedy: t`Save the image first, then drop or choose the file.`,
        });
      }
      this.ask(blob, link.split(/[?#]/)[0].split("/").at(-1) || "link", { unchecked: true });
    });
  }

  /** Search with many photographs, one after another: those of the gallery's batch, which the browser
   * keeps, and `files` after them. `nOthers` came with them and are no images. */
  askMany(files, nOthers = 0) {
    let given = files.map((blob) => ({ name: pathOf(blob), blob }));
    this.attempt(t`Opening the batch`, async (signal) => {
      const { openBatch } = await arrived(import("./batch/batch.js"));
      if (signal.aborted) return;
      if (!this.gallery) await this.openGallery(signal);
      if (this.batch?.gallery.name !== this.gallery.name) {
        this.batch?.stop();
        this.batch = openBatch(this.gallery, this.$("batch-place"), {
          refused: (problem) => {
            this.showProblem(problem);
            this.showBatch(true);
          },
          within: this.part,
          cleared: () => {
            this.batch = null;
            this.hasBatch = false;
            this.clear();
            this.went();
          },
        });
        await this.batch.restore().catch(() => {}); // where the browser keeps nothing
      }
      this.hasBatch = true;
      this.clear();
      this.showBatch(true);
      this.went("batch");
      const added = given;
      given = []; // tried again, they are there already
      if (added.length) this.batch.add(added, nOthers); // which takes its time, and shows it
      else this.batch.run();
      this.bringIntoView();
    });
  }

  /** Ask the same question with another option; null leaves it out.
   *
   * @param {keyof Api.SearchForm} name */
  async choose(name, value) {
    const { [name]: _, ...others } = this.options;
    this.options = value === null ? others : { ...others, [name]: value };
    if (!this.$("batch-place").hidden) return this.showBatch(true);
    if (!this.query) return;
    await this.attempt(this.searching(), (signal) => this.search(signal));
    if (document.activeElement !== document.body) return;
    // The box that had the focus was replaced.
    this.$("result").querySelector(`[data-testid="${name}"]`)?.focus({ preventScroll: true });
  }

  /** Take what was chosen, pasted or dropped: files, or else a link. */
  take(files, link, how) {
    const images = files.filter(isImage);
    if (files.length > 1) { // a batch, which says what was left out
      return images.length ? this.askMany(images, files.length - images.length) : this.showProblem(withoutImage(how));
    }
    const [file] = files;
    if (file) {
      const name = file.name || "pasted";
      if (this.$("crop-first").checked) return this.show(() => this.edit(file, name));
      return this.ask(file, name, { unchecked: true });
    }
    if (link) return this.askLink(link);
    this.showProblem(withoutImage(how));
  }

  /** Crop or turn an image, then search with the part. The image itself stays to go back to. */
  async edit(original, name) {
    const { crop } = await arrived(import("./ask/crop.js"));
    // What cannot be shown is sent unchanged: the service reports why it refuses it.
    const part = await crop(original, this.part).catch(() => original);
    if (part) this.ask(part, name, { original });
  }

  // Showing.

  announce(text) {
    this.$("announcer").textContent = text;
  }

  clear() {
    this.answer = null;
    this.$("problem-slot").replaceChildren();
    this.$("result").hidden = true;
    this.$("result").replaceChildren();
    this.showBatch(false);
    this.told.titled?.(null);
  }

  /** Show the batch, or hide it behind a button while one photograph is searched with. */
  showBatch(visible) {
    this.$("batch-place").hidden = !visible;
    this.$("to-batch").hidden = visible || !this.hasBatch;
    this.batch?.follow({ line: this.line, filtered: "filter" in this.options });
  }

  /** Show that work is under way, and for how long; return what ends it. */
  showBusy(words) {
    const { $ } = this;
    const started = performance.now();
    const tell = () => {
      const seconds = Math.floor((performance.now() - started) / 1000);
      $("busy-text").textContent = words + (seconds < 2 ? "…" : t`, ${seconds} s so far`);
    };
    $("result").setAttribute("aria-busy", "true");
    const shown = setTimeout(() => {
      this.clear();
      $("busy").hidden = false;
      if (this.query) this.bringIntoView();
      this.announce(`${words}.`);
    }, this.query ? BUSY_AFTER : OPENING_AFTER);
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
    this.running.signal.addEventListener("abort", stop);
    return stop;
  }

  /** Show a panel in place of an answer. */
  showPanel(panel, title = null) {
    this.clear();
    this.$("problem-slot").replaceChildren(panel);
    this.told.titled?.(title);
    this.bringIntoView();
  }

  showProblem({ problem, retryAfter }) {
    if (problem.panel) return this.showPanel(problem.panel, problem.title);
    if (problem.status !== 401) {
      return this.showPanel(problemPanel(problem, retryAfter, this.retry), t`Problem`);
    }
    this.show(() => this.askKey(problem, this.retry));
  }

  /** Ask for a key in place of an answer, then do what was refused. */
  async askKey(problem, retry) {
    await arrived(import("./key.js"));
    if (retry !== this.retry) return; // something else is asked by now
    this.clear();
    this.told.titled?.(t`Key wanted`);
    await this.showKeyForm(problem, retry);
    this.bringIntoView();
  }

  /** Ask for a key above the answer, then do what was refused. */
  async showKeyForm(problem, retry) {
    const { keyForm } = await arrived(import("./key.js"));
    const { form, input } = keyForm(problem, () => {
      this.$("problem-slot").replaceChildren();
      retry();
    });
    this.$("problem-slot").replaceChildren(form);
    input.focus({ preventScroll: true });
  }

  showAdvice(sentences) {
    const { blob, original, name } = this.query;
    this.showPanel(advicePanel(sentences, {
      anyway: () => this.ask(blob, name, { original }),
      edit: () => this.show(() => this.edit(original, name)),
      again: () => this.$("file-input").click(),
    }));
  }

  hideGallery() {
    for (const id of ["gallery-about", "empty-place", "filters", "sample-list", "text-place"]) this.$(id).replaceChildren();
    this.$("samples").hidden = true;
  }

  showGallery() {
    const { gallery, gallery: { samples = [] } } = this;
    this.showAbout();
    this.$("filters").replaceChildren(filterBar(gallery.name, (filter) =>
      this.choose("filter", filter)));
    this.$("sample-list").replaceChildren(...sampleList(samples, (sample) => this.askSample(sample)));
    this.$("samples").hidden = !samples.length;
    this.offerText();
    this.offerBatch();
  }

  /** Show what the gallery is, and what can be done with it. */
  showAbout() {
    const { gallery, may } = this;
    const opens = (room, wanted = true) => wanted && (() => this.enter([room], gallery));
    const add = opens("add", may.write);
    this.$("gallery-about").replaceChildren(...galleryParts(gallery, this.report, {
      report: opens("report"), items: opens("items"), guarantees: opens("guarantees", may.write),
      decisions: opens("decisions", gallery.keeps),
      review: opens("review", gallery.keeps && may.review),
      unknown: opens("unknown", gallery.keeps && may.review), add,
      settings: opens("settings", may.admin && gallery.created_at != null), // others are not changed over HTTP
      key: opens("key", may.key),
    }));
    this.$("empty-place").replaceChildren(gallery.n_items === 0 ? emptyPart(add) : "");
  }

  /** Show the counts and labels of a gallery again, whose items may have changed; answers stay. */
  async recount(gallery) {
    if (!this.may.write) return;
    const now = await askJson("/v1/galleries/{gallery}", { path: { gallery: gallery.name } }).catch(() => null);
    if (now === null || gallery !== this.gallery) return; // the counts stay old
    Object.assign(gallery, now);
    for (const option of this.$("gallery-picker").options) {
      if (option.value === gallery.name) option.textContent = pickedAs(gallery);
    }
    this.showAbout();
  }

  /** Offer a search in words, where the gallery's encoder reads texts. */
  async offerText() {
    const { gallery } = this;
    const form = gallery.text && await import("./ask/text.js").then(({ textForm }) =>
      textForm(this.query?.text, (text) => this.askText(text)), () => null);
    if (gallery === this.gallery) this.$("text-place").replaceChildren(form ?? "");
  }

  /** Offer the batch that the browser keeps of this gallery. */
  async offerBatch() {
    const { name } = this.gallery;
    const n = await sizeOfBatch(name).catch(() => 0);
    if (this.gallery?.name !== name) return;
    this.hasBatch = n > 0 || this.batch?.gallery.name === name;
    this.showBatch(!this.$("batch-place").hidden);
  }

  showAnswer() {
    const { answer, roundTrip, gallery, options, query } = this;
    const line = query.text ? null : this.line; // which is one among images
    const words = query.text ? this.textWords : PHOTO_WORDS;
    const shown = { ...byLine(answer, line), filtered: "filter" in options };
    const { word, says } = words.verdictOf(shown);
    this.clear();
    this.answer = answer;
    this.$("result").replaceChildren(...answerParts(answer, query, {
      words, queries: query.text ? "captions" : gallery.queries, roundTrip, line, options, why: this.why,
      look: (place, items) => this.show(() => this.look(place, items), null, `look ${place}`),
      more: (cursor) =>
        askJson("/v1/galleries/{gallery}/search/next", { path: { gallery: gallery.name }, query: { cursor } }),
      choose: (name, value) => this.choose(name, value),
      edit: () => this.show(() => this.edit(query.original, query.name)),
      mayDecide: this.may.decide,
    }));
    this.$("result").dataset.verdict = shown.verdict;
    this.importLooking().catch(() => {}); // while the answer is read
    this.$("result").hidden = false;
    this.announce(`${word}. ${says(shown)}`);
    this.told.titled?.(word);
    this.bringIntoView();
  }

  /** Show what the calibration measured, and let the visitor move the line. */
  async openReport(gallery) {
    const { showAccuracy } = await arrived(import("./accuracy/accuracy.js"));
    const path = { gallery: gallery.name };
    const [{ bundle }, report] = await Promise.all([
      askJson("/v1/galleries/{gallery}", { path }), askJson("/v1/galleries/{gallery}/calibration", { path }),
    ]).catch((error) => {
      const { status, risk_coverage: curve } = this.report;
      if (status !== "missing" && !curve?.length) throw error; // the curve was not fetched before
      return [gallery, this.report];
    });
    if (gallery !== this.gallery) return; // another one was picked since
    Object.assign(gallery, { bundle });
    this.report = report;
    const moved = (line) => {
      this.line = line;
      this.showBatch(!this.$("batch-place").hidden);
      if (this.answer) this.showAnswer();
    };
    showAccuracy(gallery, report, {
      line: this.line, moved, within: this.part, mayDecide: this.may.admin,
      changed: () => this.show(() => this.openReport(gallery), "report"),
      switched: () => {
        this.room = ["report"];
        this.renew(gallery.name);
      },
    });
  }

  async openItems(gallery, room) {
    const { browse } = await arrived(import("./browse/browsing.js"));
    browse(gallery, this.part, {
      room, went: (shown) => this.went(shown), go: (other) => this.enter([other], gallery),
      closed: () => this.recount(gallery),
    });
  }

  async openCheck(gallery, name) {
    const { open } = await arrived(name === "duplicates"
      ? import("./browse/duplicates.js") : import("./browse/label_errors.js"));
    await open(gallery, this.part, () => this.recount(gallery));
  }

  async openGuarantees(gallery) {
    const { openGuarantees } = await arrived(import("./collect/guarantees.js"));
    const { report, may } = this;
    await openGuarantees(gallery, report, {
      within: this.part, may, go: (room) => this.enter(room),
      changed: () => {
        this.room = ["guarantees"];
        this.renew(gallery.name);
      },
    });
  }

  async openReview(gallery) {
    const { openReview } = await arrived(import("./look/reviewing.js"));
    await openReview(gallery, {
      within: this.part, mayRemove: this.may.write, named: () => this.enter(["review"], gallery),
    });
  }

  async openUnknown(gallery) {
    const { openUnknown } = await arrived(import("./collect/unknown.js"));
    await openUnknown(gallery, {
      within: this.part, write: this.may.write, changed: () => this.renew(gallery.name),
    });
  }

  /** Open a gallery anew, whose counts, labels or even existence have changed; null for the first. */
  renew(name) {
    this.$("gallery-picker").replaceChildren();
    Object.assign(this, { name, query: null, at: [] });
    if (name === null) this.hideGallery(); // it offers what another key allows
    this.told.went?.(...(name === null ? [] : [name, ...this.room]));
    this.clear();
    this.open(name === null ? t`Looking up the galleries` : t`Opening ${name}`);
  }

  async openAdding(gallery) {
    const { openAdding } = await arrived(import("./collect/adding.js"));
    await openAdding(gallery, {
      within: this.part,
      changed: (name) => this.renew(name),
      review: () => { this.room = ["guarantees"]; },
    });
  }

  async openSettings(gallery) {
    const { openSettings } = await arrived(import("./collect/settings.js"));
    openSettings(gallery, { within: this.part, changed: (name) => this.renew(name) });
  }

  async openKey() {
    const { openKey } = await arrived(import("./key.js"));
    await openKey({ within: this.part, changed: () => this.renew(null) });
  }

  async openDecisions(gallery) {
    (await arrived(import("./look/decided.js"))).showDecided(gallery, this.part);
  }

  async importLooking() {
    const module = await arrived(import("./look/looking.js"));
    if (this.looking) return;
    const end = module.onDecision((decision) => {
      if (decision.entry === this.query?.entry) this.showDecision(decision.entry);
      if (decision.kind === "new" && decision.gallery === this.gallery) this.recount(this.gallery);
      this.told.decided?.(decision);
    });
    const { release } = this;
    this.release = () => { end(); release(); };
    this.looking = module;
  }

  /** Look closely at a result of the answer, and decide. */
  async look(place, items = this.answer.results) {
    const { answer, gallery, query } = this;
    if (!this.looking) await this.importLooking();
    const { look } = this.looking;
    const entry = entryOf(query, answer);
    const closed = () => this.showDecision(entry);
    look(entry, gallery, { place, items, within: this.part, closed });
  }

  /** Say below the verdict what was decided. */
  showDecision({ decision }) {
    const slot = this.$("result").querySelector("[data-testid=decision]");
    const failed = decision?.problem ? ` ${decision.problem}` : "";
    if (slot) slot.textContent = decision ? decisionSentence(decision) + failed : "";
  }

  bringIntoView() {
    const { top } = this.$("answer").getBoundingClientRect();
    if (top >= 0 && top < innerHeight / 2) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.$("answer").scrollIntoView({ behavior: calm ? "auto" : "smooth" });
  }
}
