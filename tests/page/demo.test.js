import assert from "node:assert/strict";
import { test } from "node:test";
import axe from "axe-core";
import { chromium } from "playwright-core";

test("the browser and axe-core are here", async () => {
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
  const page = await browser.newPage();
  await page.setContent("<main><h1>Here</h1></main>");
  await page.evaluate(axe.source);
  assert.ok(await page.evaluate("axe.version"));
  await browser.close();
});
