// The token, for a session: without one nothing else of the page is there.

import * as api from "./api.js";
import { h, show } from "./dom.js";

/** The form; `onSignedIn` is called when the prober has taken the token. */
export function loginView(onSignedIn) {
  const token = h("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", "aria-describedby": "token-help token-error" });
  const error = h("p", { class: "error", id: "token-error", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "solid" }, "Sign in");
  const form = h(
    "form",
    { class: "card login", novalidate: true },
    h("h1", { tabindex: "-1" }, "Weighbridge"),
    h("div", { class: "field" }, h("label", { for: "token" }, "Token"), token, h("p", { class: "help", id: "token-help" }, "The first line of the prober's api.token_file."), error),
    h("div", { class: "buttons" }, button),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    show(error, false);
    try {
      await api.signIn(token.value.trim());
      token.value = "";
      onSignedIn();
    } catch (failure) {
      error.textContent = failure.status === 401 ? "This is not the prober's token." : failure.message;
      token.setAttribute("aria-invalid", "true");
      show(error, true);
      token.select();
    } finally {
      button.disabled = false;
    }
  });
  return { element: h("main", { id: "main", class: "login-page", tabindex: "-1" }, form), focus: () => token.focus() };
}
