// Dialogs with a form: fields with the API's errors beside them, and the focus back where it was.

import { note } from "./announce.js";
import { h, isSeen, show } from "./dom.js";

/** Screen readers speak of the focus that comes back first; what is said in the same moment is lost. */
const SAY_AFTER_MS = 100;

let number = 0;

function input(field, id) {
  const common = { id, name: field.name, "aria-describedby": `${id}-help ${id}-error`, autocomplete: "off" };
  if (field.options) {
    return h("select", common, field.options.map((option) => h("option", { value: option, selected: option === field.value }, option)));
  }
  const kind = field.kind ?? "text";
  return h("input", {
    ...common,
    type: kind === "check" ? "checkbox" : "text",
    inputmode: kind === "number" ? "decimal" : null,
    spellcheck: "false",
    value: kind === "check" ? null : (field.value ?? ""),
    placeholder: field.placeholder,
  });
}

function build(field) {
  number += 1;
  const id = `field-${number}`;
  const control = input(field, id);
  const error = h("p", { class: "error", id: `${id}-error`, hidden: true });
  const help = h("p", { class: "help", id: `${id}-help` }, field.help ?? "");
  const label = h("label", { for: id }, field.label, field.optional ? h("span", { class: "optional" }, " optional") : null);
  const element =
    field.kind === "check"
      ? h("div", { class: "field check" }, h("div", { class: "line" }, control, label), help, error)
      : h("div", { class: "field" }, label, control, help, error);
  show(help, Boolean(field.help));
  return {
    element,
    control,
    field,
    value() {
      if (field.kind === "check") return control.checked;
      const text = control.value.trim();
      if (field.kind !== "number" || text === "") return text;
      return Number(text.replace(",", "."));
    },
    fail(message) {
      error.textContent = message ?? "";
      show(error, Boolean(message));
      control.setAttribute("aria-invalid", String(Boolean(message)));
    },
  };
}

/**
 * Asks. `fields` are `{name, label, kind: text|number|check, options, value, help, optional, expects}`, `act(values)` does it and may
 * throw an ApiError, whose message is shown beside the field that it names, else above; what it answers is said once the dialog is
 * closed (while it is open, screen readers hear nothing of the rest of the page). `opener` gets the focus afterwards, the view's heading
 * when it is gone.
 */
export function ask({ title, text, warning, fields = [], button, danger = false, opener, act }) {
  const parts = fields.map(build);
  const failure = h("p", { class: "error", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: danger ? "danger solid" : "solid" }, button);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const heading = h("h2", { id: `dialog-${(number += 1)}` }, title);
  const form = h(
    "form",
    { novalidate: true },
    heading,
    text ? h("p", { class: "muted" }, text) : null,
    warning ? h("p", { class: "warning" }, warning) : null,
    failure,
    parts.map((part) => part.element),
    h("div", { class: "buttons" }, cancel, submit),
  );
  const dialog = h("dialog", { "aria-labelledby": heading.id }, form);
  const fail = (error) => {
    const part = parts.find(({ field }) => field.name === error.field);
    if (part) {
      part.fail(error.message);
      part.control.focus();
    } else {
      failure.textContent = error.message;
      show(failure, true);
    }
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    show(failure, false);
    for (const part of parts) part.fail(null);
    const values = Object.fromEntries(parts.map((part) => [part.field.name, part.value()]));
    // What cannot even be written as a number is said in the API's own words.
    const wrong = parts.find((part) => part.field.kind === "number" && (Number.isNaN(values[part.field.name]) || (values[part.field.name] === "" && !part.field.optional)));
    if (wrong) {
      const { name, expects } = wrong.field;
      fail({ field: name, message: `${name} is ${JSON.stringify(wrong.control.value)}: expected ${expects ?? "a number"}` });
      return;
    }
    submit.disabled = true;
    try {
      const told = await act(values);
      dialog.close();
      setTimeout(note, SAY_AFTER_MS, told);
    } catch (error) {
      fail(error);
    } finally {
      submit.disabled = false;
    }
  });
  // A click on the backdrop is a click on the dialog itself. The dialog has no padding, and its form scrolls: all else is the form's.
  dialog.addEventListener("pointerdown", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (isSeen(opener)) opener.focus();
    else document.querySelector("main h1")?.focus({ preventScroll: true });
  });
  document.body.append(dialog);
  dialog.showModal();
  (parts[0]?.control ?? (danger ? cancel : submit)).focus();
  return dialog;
}
