// Where the focus is, what screen readers can hear, and what stays where it is while somebody reads, types or chooses.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.js";
import { ROOT, aProber, anEngine, eventually, freePorts } from "./demo.js";

let engine;
let prober;
let browser;
let seen;
let page;

before(async () => {
  engine = await anEngine();
  prober = await aProber({
    filter: { wasm: join(ROOT, "dist", "weighbridge.wasm") },
    store: { path: "prober.redb" },
    probe: { concurrency: 4, tokens: 16, prefill_tokens: 0 },
    health: { interval: "250ms" },
    // Without an Envoy nobody knows when an endpoint is empty: it is forgotten when this is over.
    drain: { deadline: "1s" },
    pools: [{ name: "p", models: ["m"], served_model: "m", endpoints: [{ id: "card", address: engine.address }] }],
  });
  [browser] = await Promise.all([launch(), prober.start()]);
  seen = await open(browser, prober.api);
  page = seen.page;
  await page.clock.install();
  await eventually("it is measured", async () => (await api("GET", "/v1/endpoints/card")).weight_source === "measured");
});

after(async () => {
  await browser?.close();
  await prober?.end();
  await engine?.stop();
});

const api = async (method, path, body) => {
  const answer = await fetch(`${prober.api}${path}`, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};
const dialog = () => page.locator("dialog[open]");
const submit = () => dialog().locator("button[type=submit]").click();
/** Of what has the focus: its tag, and its text or label. */
const focused = () => page.evaluate(() => {
  const { activeElement: at } = document;
  return `${at.tagName} ${at.getAttribute("aria-label") ?? at.innerText}`;
});

async function choose(id, action) {
  await page.getByRole("button", { name: `Actions for ${id}` }).click();
  await page.getByRole("menuitem", { name: action, exact: true }).click();
  await dialog().waitFor();
}

test("what became of it is said when the dialog is closed, so that a screen reader hears it", async () => {
  await seen.goto("#/");
  await page.evaluate(() => {
    window.said = [];
    const region = document.getElementById("said");
    new MutationObserver(() => window.said.push([region.textContent, document.querySelector("dialog[open]") !== null])).observe(region, { childList: true });
  });
  await choose("card", "Pin weight");
  await dialog().getByLabel("Weight").fill("2");
  await submit();
  const told = await eventually("it is said", async () => (await page.evaluate("said")).find(([text]) => text === "card is pinned to 2."));
  assert.deepEqual(told, ["card is pinned to 2.", false]);
  await choose("card", "Unpin");
  await submit();
  await eventually("it is said", async () => (await page.evaluate("said")).some(([text]) => text === "card is no longer pinned."));
  await seen.check();
});

test("a click at the edge of a dialog keeps it, one beside it closes it", async () => {
  await choose("card", "Drain");
  await dialog().getByLabel("Reason").fill("half a sentence");
  const { x, y, width, height } = await dialog().boundingBox();
  for (const [across, down] of [[x + 5, y + height / 2], [x + width - 5, y + height / 2], [x + width / 2, y + 5], [x + width / 2, y + height - 5]]) {
    await page.mouse.click(across, down);
    assert.equal(await dialog().getByLabel("Reason").inputValue(), "half a sentence");
  }
  await page.mouse.click(x - 5, y + height / 2);
  await dialog().waitFor({ state: "detached" });
  assert.equal((await api("GET", "/v1/endpoints/card")).drain, null);
  assert.equal(await focused(), "BUTTON Actions for card");
});

test("after a removal the focus is on the heading, in both views", async () => {
  const [nobody] = await freePorts(1);
  for (const [hash, heading] of [["#/", "H1 Fleet"], ["#/endpoint/extra", "H1 extra"]]) {
    await api("POST", "/v1/endpoints", { pool: "p", id: "extra", address: `127.0.0.1:${nobody}` });
    await seen.goto(hash);
    if (hash === "#/") await choose("extra", "Remove");
    else {
      await page.getByRole("button", { name: "Remove" }).click();
      await dialog().waitFor();
    }
    await submit();
    await dialog().waitFor({ state: "detached" });
    await eventually("it is gone", async () => (await page.locator("tr[data-endpoint=extra], .actions button:visible").count()) === 0);
    await eventually(`the focus is on ${heading}`, async () => (await focused()) === heading);
  }
  await seen.check();
});

test("choosing in a search does nothing until it is sent", async () => {
  await seen.goto("#/decisions");
  const endpoint = page.getByRole("combobox", { name: "Endpoint", exact: true });
  await endpoint.focus();
  await page.keyboard.press("ArrowDown");
  assert.equal(await endpoint.inputValue(), "card");
  // A change that was acted on would have moved it by now: the address changes at once.
  assert.equal(await page.evaluate("location.hash"), "#/decisions");
  assert.ok(await endpoint.evaluate((select) => select === document.activeElement));
  await page.keyboard.press("Tab");
  await page.keyboard.press("ArrowDown");
  await page.getByRole("button", { name: "Search" }).focus();
  await page.keyboard.press("Enter");
  await eventually("it is searched", async () => (await page.evaluate("location.hash")) === "#/decisions?endpoint=card&since=5m");
  await seen.check();
});

test("only a record that can be found again has a link", async () => {
  const record = { pool: "p", time_ms: Date.now(), reason: "only_one", picked: "card", candidates: [], result: { status: 200, duration_ms: 5, endpoint: "card" } };
  const other = await open(browser, prober.api);
  for (const [id, links] of [[undefined, 0], ["an-id", 1]]) {
    const decisions = [{ ...record, request_id: id }];
    await other.page.route("**/v1/decisions?*", (route) => route.fulfill({ json: { decisions, explanations: [], matched: 1, kept: 1, oldest_ms: record.time_ms } }));
    await other.goto("#/decisions");
    await other.page.locator(".record").waitFor();
    assert.equal(await other.page.getByRole("link", { name: "Link to this record" }).count(), links);
  }
  await other.check();
  await other.close();
});

test("plots are drawn anew only when they show something else", async () => {
  await seen.goto("#/endpoint/card");
  const plot = page.locator(".plot", { hasText: "Probes" });
  const drawing = plot.locator("svg");
  await drawing.waitFor();
  const mark = () => drawing.evaluate((svg) => (svg.mark = true));
  const marked = () => drawing.evaluate((svg) => svg.mark === true);
  await mark();
  const looked = page.waitForResponse((answer) => new URL(answer.url()).pathname === "/v1/endpoints/card");
  await page.clock.fastForward(16_000);
  await (await looked).finished();
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  assert.ok(await marked(), "the same probes");
  await page.setViewportSize({ width: 1000, height: 800 });
  await eventually("another width", async () => !(await marked()));
  await mark();
  await api("POST", "/v1/endpoints/card/probe");
  await eventually("another probe", async () => !(await marked()));
  await seen.check();
});
