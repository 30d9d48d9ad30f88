// A new gallery, and the room of a service that has none yet.

import { Problem, askJson } from "../api.js";
import { el } from "../elements.js";
import { t } from "../language.js";
import { problemOf, problemPanel } from "../problem.js";

const CREATED_WITHIN = 120; // seconds: a busy service continues after its deadline for an answer

/** A field for the name of a gallery. */
export const nameField = (id, properties = {}) => el("input", {
  type: "text", id, maxLength: 64, pattern: "[a-z0-9][a-z0-9._\\-]*", autocomplete: "off", spellcheck: false, ...properties,
});

/** Create an empty gallery with the name in `field`, with the encoder of the gallery `like`, or else with
 * the one that comes with the service. Return the name. */
export async function createGallery(field, like = null) {
  const name = field.value;
  if (!name || !field.validity.valid) {
    throw new Problem({ title: t`Give the new gallery a name`, detail: t`Small letters, digits, dots and hyphens.` });
  }
  await askJson("/v1/galleries", { method: "POST", json: like === null ? { name } : { name, like } });
  return name;
}

/** Whether a gallery can be opened that a busy service could not create in time; it is waited for. */
async function comesLater(name) {
  for (const until = Date.now() + 1000 * CREATED_WITHIN; Date.now() < until;) {
    try {
      await askJson("/v1/galleries/{gallery}", { path: { gallery: name } });
      return true;
    } catch ({ problem }) {
      if (![404, 503, 504].includes(problem?.status)) return false;
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
  return false;
}

/** The room of a service without galleries: what Vouch does, and the first gallery. `made` is called with
 * its name; `heading` is the element of the page's title; `asked`: a visitor has brought photographs. */
export function firstRoom({ admin, asked, heading, made }) {
  const name = nameField("first-name", { value: t`photos`, required: true });
  const create = el("button.primary", { type: "submit" }, t`Create the gallery`);
  const status = el("p.status", { role: "status" });
  const problem = el("div", { role: "alert" });

  async function submit(event) {
    event.preventDefault();
    if (create.disabled) return;
    create.disabled = true;
    status.textContent = t`Creating the gallery…`;
    problem.replaceChildren();
    try {
      await createGallery(name).catch(async (error) => {
        if (error.problem?.status !== 504 || !await comesLater(name.value)) throw error;
      });
      made(name.value);
    } catch (error) {
      const { problem: found, retryAfter } = problemOf(error);
      problem.replaceChildren(problemPanel(found, retryAfter));
    } finally {
      create.disabled = false;
      status.textContent = "";
    }
  }

  return el("section.first-room", { "aria-labelledby": "first-title", "data-testid": "first-room" },
    el(heading, { id: "first-title" }, t`Create the first gallery`),
    asked && el("p.warning", {}, t`Nothing was searched: there is no gallery yet.`),
    el("p", {}, t`Vouch finds the photos of your gallery that show the same as a new photo. It also says how sure it is, so that you know which answers need a second look.`),
    admin ? el("form", { onsubmit: submit },
      el("p", {}, el("label", { htmlFor: name.id }, t`Name of the gallery`), " ", name),
      el("p.note", {}, t`Small letters, digits, dots and hyphens.`), create, status)
      : el("p", {}, t`A key with the scope “admin” is needed to create a gallery.`),
    problem);
}
