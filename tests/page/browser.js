// A real browser that notices what must not happen: errors of scripts, violations of the content-security policy, requests to
// anybody else, answers that are errors.

import assert from "node:assert/strict";
import axe from "axe-core";
import { chromium } from "playwright-core";

const QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

export const launch = () => chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", ...QUIET] });

/** A page of its own context; `check(...expected)` fails on everything that must not have happened since the last
 * time, `expected` being answers of 4xx, or a pattern of those that may have come. */
export async function open(browser, origin, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const [bad, answers] = [[], []];
  page.on("pageerror", (error) => bad.push(`error: ${error.stack}`));
  page.on("dialog", (dialog) => {
    bad.push(`a dialog of the browser: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("console", (message) => {
    // An answer of 4xx, or a stream that is cut, is told here, too, without saying which; `answers` has them.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) bad.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) bad.push(`fetched from elsewhere: ${request.url()}`);
  });
  page.on("response", (response) => {
    const request = response.request();
    if (response.status() >= 400) answers.push(`${response.status()} ${request.method()} ${new URL(response.url()).pathname}`);
  });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
  });
  return {
    page,
    context,
    async goto(hash) {
      // Afresh, not from where the page happens to be.
      await page.goto("about:blank");
      await page.goto(`${origin}/${hash}`);
      await page.locator("main h1").waitFor();
    },
    async check(...expected) {
      assert.deepEqual(bad, []);
      const told = answers.splice(0);
      if (expected[0] instanceof RegExp) assert.deepEqual(told.filter((answer) => !expected[0].test(answer)), []);
      else assert.deepEqual(told.toSorted(), expected.toSorted());
      assert.deepEqual(await page.evaluate("violations"), []);
    },
    close: () => context.close(),
  };
}

/** Everything that axe-core knows of, and a page that is no wider than the window. */
export async function accessible(page, what) {
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => window.axe.run());
  const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`);
  assert.deepEqual(told, [], what);
  const tooWide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(tooWide <= 0, `${what}: ${tooWide} px wider than the window`);
}
