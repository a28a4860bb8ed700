// Runs before anything is drawn, so that a remembered theme does not flash. Not a module: modules wait for the document.
"use strict";
try {
  const theme = localStorage.getItem("weighbridge-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing shows what the system says.
}
