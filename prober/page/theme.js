// Light or dark: as the system says, until somebody chooses. `early.js` reads the choice before anything is drawn.

import { h, icon, setAttribute } from "./dom.js";

const KEY = "weighbridge-theme";
const MOON = "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z";
const system = matchMedia("(prefers-color-scheme: dark)");

const current = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");

/** The switch. */
export function themeSwitch() {
  const button = h("button", { class: "quiet square", type: "button", "aria-label": "Dark theme" }, icon(MOON));
  const show = () => setAttribute(button, "aria-pressed", String(current() === "dark"));
  button.addEventListener("click", () => {
    const theme = current() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // Then it lasts as long as this page.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
  return button;
}
