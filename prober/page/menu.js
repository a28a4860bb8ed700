// The menu of a row: one element for all, by mouse and by keyboard as menus are. The browser's popover closes it on Escape and
// on a click elsewhere.

import { h } from "./dom.js";

let opener = null;

const list = h("div", { class: "menu", id: "menu", role: "menu", popover: "auto" });
list.addEventListener("toggle", (event) => {
  if (event.newState === "open") return;
  opener?.setAttribute("aria-expanded", "false");
  // Escape gives the focus back; a click elsewhere has moved it.
  if (list.contains(document.activeElement) || document.activeElement === document.body) opener?.focus();
});
list.addEventListener("keydown", (event) => {
  const items = [...list.children];
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
  if (event.key === "Tab") list.hidePopover();
  if (to === undefined) return;
  event.preventDefault();
  items.at(to % items.length).focus();
});

/** Opens it under a button: `items` are `{label, action, danger}`. An action is given the button, for the focus to come back to. */
export function openMenu(button, label, items) {
  opener = button;
  list.setAttribute("aria-label", label);
  list.replaceChildren(
    ...items.map(({ label, action, danger }) =>
      h(
        "button",
        {
          type: "button",
          role: "menuitem",
          tabindex: "-1",
          class: danger ? "danger" : null,
          onclick: () => {
            list.hidePopover();
            action(button);
          },
        },
        label,
      ),
    ),
  );
  // Within the page's landmarks; a view that goes takes it along.
  if (!list.isConnected) document.getElementById("main").append(list);
  list.showPopover();
  button.setAttribute("aria-expanded", "true");
  const place = button.getBoundingClientRect();
  const below = place.bottom + list.offsetHeight + 8 < innerHeight;
  list.style.left = `${Math.max(8, place.right - list.offsetWidth)}px`;
  list.style.top = `${below ? place.bottom + 4 : Math.max(8, place.top - list.offsetHeight - 4)}px`;
  list.firstElementChild.focus();
}
