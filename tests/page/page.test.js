// The page against the running demo: everything that people do in it, in a real browser. One demo, one browser; each test puts
// back what it has changed.

import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { accessible, launch, open } from "./browser.js";
import { PICTURES, eventually, freePorts, startDemo } from "./demo.js";

const PHONE = { width: 360, height: 780 };
const DESK = { width: 1280, height: 860 };

let demo;
let browser;
let seen;
let page;

before(async () => {
  [demo, browser] = await Promise.all([startDemo(), launch()]);
  seen = await open(browser, demo.api);
  page = seen.page;
});

after(async () => {
  await browser?.close();
  await demo?.stop();
});

const api = async (method, path, body) => {
  const answer = await fetch(`${demo.api}${path}`, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  return answer.json();
};
const endpoint = (id) => api("GET", `/v1/endpoints/${id}`);
const row = (id) => page.locator(`tr[data-endpoint="${id}"]`);
const dialog = () => page.locator("dialog[open]");
const control = (label) => dialog().getByLabel(label);
/** A field with its label, its help and its error. */
const field = (label) => dialog().locator(".field", { has: page.getByLabel(label) });
const submit = () => dialog().locator("button[type=submit]").click();
const picture = (name, options) => page.screenshot({ path: join(PICTURES, `${name}.png`), ...options });
const says = (locator, text) => eventually(`${text} is shown`, async () => (await locator.innerText()).includes(text));

/** Chooses in the menu of a row. */
async function choose(id, action) {
  await row(id).getByRole("button", { name: `Actions for ${id}` }).click();
  await page.getByRole("menuitem", { name: action, exact: true }).click();
  await dialog().waitFor();
}

/** Tab until the element that has the focus is called so. */
async function tabTo(name) {
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const { activeElement: at } = document;
      // Whoever goes by keyboard must see where they are.
      if (at !== document.body && getComputedStyle(at).outlineStyle === "none") throw new Error(`no visible focus: ${at.outerHTML}`);
      return at.getAttribute("aria-label") ?? at.innerText;
    });
    if (focused === name) return;
  }
  assert.fail(`nothing called ${name} can be reached with Tab`);
}

test("the first probes are seen as they run", async () => {
  await seen.goto("#/");
  const running = page.locator("tr[data-endpoint]", { has: page.locator("[role=progressbar]:visible") });
  await running.first().waitFor({ timeout: 60_000 });
  await picture("probing-fleet");
  const id = await running.first().getAttribute("data-endpoint");
  await seen.goto(`#/endpoint/${id}`);
  await page.locator(".probing").waitFor();
  await accessible(page, "an endpoint while it is probed");
  await seen.check();
});

test("the fleet shows what was measured", async () => {
  await seen.goto("#/");
  await eventually("every endpoint is measured", async () => (await page.locator('.source[data-source="measured"]').count()) === 3, 240_000);
  // A cap follows what is observed, and a bar takes a moment to its new width: they agree with the API soon, not at any instant.
  await eventually("the page shows what the API says", async () => {
    const { endpoints } = await api("GET", "/v1/fleet");
    const texts = await Promise.all(endpoints.map(({ id }) => row(id).innerText()));
    endpoints.forEach(({ weight, throughput_tps: tps, max_in_flight: cap }, at) => {
      for (const text of [weight.toFixed(2), Math.round(tps).toString(), `/ ${cap}`, "Ready"]) {
        assert.ok(texts[at].includes(text), `${text} is not in: ${texts[at]}`);
      }
    });
    return true;
  });
  // The bar is the weight, and the mark the median of one.
  await eventually("the bar is as long as the weight", async () => {
    const { endpoints } = await api("GET", "/v1/fleet");
    const [bar, mark] = await row("fast-card").evaluate((line) => {
      const width = line.querySelector(".col-weight .track").clientWidth;
      return [line.querySelector(".col-weight .fill").clientWidth / width, parseFloat(line.querySelector(".median").style.left) / 100];
    });
    const { weight } = endpoints.find(({ id }) => id === "fast-card");
    assert.ok(Math.abs(bar / mark - weight) < 0.1, `bar ${bar}, mark ${mark}, weight ${weight}`);
    return true;
  });
  await seen.check();
});

test("it is live: figures and lines change without a reload", async () => {
  await eventually("requests are seen", async () => (await page.locator("tbody .col-output .spark-line[d^=M]").count()) > 0, 60_000);
  await page.evaluate(() => {
    window.writes = 0;
    new MutationObserver(() => (window.writes += 1)).observe(document.querySelector(".pools"), { subtree: true, childList: true, characterData: true });
  });
  await eventually("figures change", () => page.evaluate("writes > 3"));
  assert.equal(await page.locator(".connection").innerText(), "Live");
  assert.match(await page.locator("tbody .spark").first().getAttribute("aria-label"), /in the last \d+ minutes/);
  // Somebody else changes something.
  await api("PUT", "/v1/endpoints/pair/pin", { weight: 1.5, reason: "by somebody else" });
  await says(row("pair"), "pinned: by somebody else");
  await api("DELETE", "/v1/endpoints/pair/pin");
  await says(row("pair"), "measured");
  await seen.check();
});

test("rows stay where they are while what they show changes", async () => {
  const place = async () => (await page.locator("tbody tr").last().boundingBox()).y;
  const first = await place();
  await api("PUT", "/v1/endpoints/fast-card/drain", { reason: "a reason that is long enough to take more than one line of its column" });
  await says(row("fast-card"), "a reason");
  assert.equal(await place(), first);
  await api("DELETE", "/v1/endpoints/fast-card/drain");
  await says(row("fast-card"), "Ready");
});

test("pin and unpin, with the API's errors beside their fields", async () => {
  await seen.goto("#/");
  await choose("old-card", "Pin weight");
  const weight = control("Weight");
  const reason = control("Reason");
  await weight.fill("5000");
  await submit();
  await says(field("Weight"), "weight is 5000: expected a number from 0.01 to 100");
  assert.equal(await weight.getAttribute("aria-invalid"), "true");
  assert.ok(await weight.evaluate((input) => input === document.activeElement));
  await accessible(page, "a dialog with an error");
  await weight.fill("much");
  await submit();
  await says(field("Weight"), 'weight is "much": expected a number from 0.01 to 100');
  await weight.fill("0.4");
  await reason.fill("x".repeat(501));
  await submit();
  await says(field("Reason"), "expected at most 500");
  await reason.fill("thermal throttling since Tuesday");
  await picture("pin");
  await submit();
  await dialog().waitFor({ state: "detached" });
  await says(row("old-card"), "0.40");
  await says(row("old-card"), "pinned: thermal throttling");
  assert.deepEqual((({ weight, reason }) => ({ weight, reason }))((await endpoint("old-card")).pin), { weight: 0.4, reason: "thermal throttling since Tuesday" });
  // The focus is back where it came from.
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Actions for old-card");
  await choose("old-card", "Unpin");
  await submit();
  await says(row("old-card"), "measured");
  assert.equal((await endpoint("old-card")).pin, null);
  await seen.check("400 PUT /v1/endpoints/old-card/pin", "400 PUT /v1/endpoints/old-card/pin");
});

test("a pin by keyboard alone; markup in a reason stays text", async () => {
  const other = await open(browser, demo.api);
  const [mine, markup] = [page, '<img src=x onerror="alert(1)"><b>x</b>'];
  page = other.page;
  try {
    await other.goto("#/");
    await row("pair").waitFor();
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.innerText), "Skip to content");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await tabTo("Actions for pair");
    await page.keyboard.press("Enter");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowUp");
    assert.equal(await page.evaluate(() => document.activeElement.innerText), "Pin weight");
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Actions for pair");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await dialog().waitFor();
    await page.keyboard.press("Control+A");
    await page.keyboard.type("2.5");
    await page.keyboard.press("Tab");
    await page.keyboard.type(markup);
    await page.keyboard.press("Enter");
    await says(row("pair"), "2.50");
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Actions for pair");
    await says(page.locator("#said"), "pair is pinned to 2.5.");
    await says(row("pair"), markup);
    await other.goto("#/endpoint/pair");
    await says(page.locator("main"), markup);
    assert.equal(await page.locator("main img, main b").count(), 0);
    await other.check();
  } finally {
    page = mine;
    await other.close();
    await api("DELETE", "/v1/endpoints/pair/pin");
  }
});

test("drain and undrain with a reason", async () => {
  await seen.goto("#/endpoint/pair");
  await page.getByRole("button", { name: "Drain", exact: true }).click();
  await control("Deadline, seconds").fill("700000");
  await submit();
  await says(field("Deadline, seconds"), "deadline_s is 700000: expected at most 604800");
  await control("Deadline, seconds").fill("600");
  await control("Reason").fill("driver update");
  await submit();
  await says(page.locator(".view-head"), "driver update");
  await says(page.locator(".view-head"), "Drained");
  await page.getByRole("button", { name: "Undrain" }).click();
  await submit();
  await says(page.locator(".view-head"), "Ready");
  assert.equal((await endpoint("pair")).drain, null);
  await seen.check("400 PUT /v1/endpoints/pair/drain");
});

test("who drains the last endpoint is warned", async () => {
  await seen.goto("#/");
  for (const id of ["pair", "old-card"]) await api("PUT", `/v1/endpoints/${id}/drain`, { reason: "test" });
  try {
    for (const id of ["pair", "old-card"]) await says(row(id), "test");
    await choose("fast-card", "Drain");
    await says(dialog(), "Nobody else in demo takes requests");
    await page.keyboard.press("Escape");
    await dialog().waitFor({ state: "detached" });
  } finally {
    for (const id of ["pair", "old-card"]) await api("DELETE", `/v1/endpoints/${id}/drain`);
  }
  await says(row("old-card"), "Ready");
  await seen.check();
});

test("register and remove", async () => {
  const [port] = await freePorts(1);
  await seen.goto("#/");
  await page.getByRole("button", { name: "Register" }).click();
  await control("Id").fill("no good id");
  await control("Address").fill("nonsense");
  await submit();
  await says(field("Id"), "id is");
  await control("Id").fill("spare");
  await submit();
  await says(field("Address"), "address is");
  await control("Address").fill(`127.0.0.1:${port}`);
  await control("Node").fill("<i>gpu-z</i>");
  await control("Context window, tokens").fill("8192");
  await submit();
  await page.locator("h1", { hasText: "spare" }).waitFor();
  await says(page.locator("main"), "<i>gpu-z</i>");
  await says(page.locator("main"), "8,192 tokens");
  assert.equal((await endpoint("spare")).node, "<i>gpu-z</i>");
  // Nobody listens there: that is an alarm, and says where to read on.
  await says(page.locator(".view-head"), "Unhealthy");
  await seen.goto("#/alarms");
  await page.locator("main h2", { hasText: "Unhealthy" }).waitFor();
  await says(page.locator("main"), "docs/alarms.md, unhealthy");
  await accessible(page, "alarms");
  await picture("alarms");
  await page.locator("main").getByRole("link", { name: "spare" }).click();
  await page.getByRole("button", { name: "Remove" }).click();
  // What cannot be undone does not have the focus.
  assert.equal(await page.evaluate(() => document.activeElement.innerText), "Cancel");
  await submit();
  await page.getByText("There is no such endpoint.").waitFor();
  assert.equal((await fetch(`${demo.api}/v1/endpoints/spare`)).status, 404);
  // One of the file cannot be removed here.
  await seen.goto("#/endpoint/pair");
  await page.getByRole("button", { name: "Drain", exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Remove" }).count(), 0);
  await seen.check("400 POST /v1/endpoints", "400 POST /v1/endpoints");
});

test("a probe is followed through both bursts, and ends in the history", async () => {
  const before = (await endpoint("fast-card")).history.length;
  await seen.goto("#/endpoint/fast-card");
  await page.locator(".plot svg").first().waitFor();
  await page.evaluate(() => {
    window.stages = new Set();
    const look = () => {
      for (const step of document.querySelectorAll(".step")) {
        if (step.dataset.stage === "now") window.stages.add(step.querySelector(".title").firstChild.textContent);
      }
    };
    new MutationObserver(look).observe(document.querySelector(".probing"), { subtree: true, attributes: true });
  });
  await page.getByRole("button", { name: "Probe", exact: true }).click();
  await submit();
  await page.locator('.step[data-stage="now"]', { hasText: "Kept burst" }).waitFor({ timeout: 60_000 });
  await says(page.locator(".step", { hasText: "Warm-up burst" }), "tok/s");
  await picture("probing");
  await eventually("the probe is in the history", async () => (await endpoint("fast-card")).history.length > before, 60_000);
  await page.locator(".probing").waitFor({ state: "hidden" });
  const stages = await page.evaluate("[...stages]");
  for (const stage of ["Warm-up burst", "Kept burst"]) assert.ok(stages.includes(stage), `${stage} was not seen: ${stages}`);
  await eventually("the plot has it", async () => (await page.locator(".plot [data-read]").count()) === before + 1);
  const last = (await endpoint("fast-card")).history.at(-1);
  const plot = page.locator("figure", { hasText: "Probes" });
  await plot.locator("summary").click();
  const cells = await plot.locator("tbody tr").first().locator("td").allInnerTexts();
  assert.deepEqual(cells.slice(1, 3), [last.warmup_tps, last.throughput_tps].map((tps) => (tps < 99.95 ? tps.toFixed(1) : new Intl.NumberFormat("en").format(Math.round(tps)))));
  assert.match(await plot.locator("svg").getAttribute("aria-label"), new RegExp(`^${before + 1} probes`));
  await plot.locator("summary").click();
  await seen.check();
});

/** A streamed request through the gateway, to its end. */
async function ask(id, tokens) {
  const body = { model: "demo", stream: true, max_tokens: tokens, messages: [{ role: "user", content: `${id} ${"why ".repeat(200)}` }] };
  const answer = await fetch(`${demo.gateway}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  await answer.text();
  return answer.headers.get("x-weighbridge-endpoint");
}

test("why was this one slow: decisions are found, and explained in words and numbers", async () => {
  const answered = await ask("slow", 300);
  const found = await eventually("the record is there", async () => (await api("GET", `/v1/decisions?slow_ms=1000&endpoint=${answered}`)).decisions[0]);
  await seen.goto("#/");
  await page.getByRole("link", { name: "Decisions" }).click();
  await page.getByRole("combobox", { name: "Endpoint", exact: true }).selectOption(answered);
  await page.getByRole("textbox", { name: "Took at least", exact: true }).fill("1000");
  await page.getByRole("textbox", { name: "First token after", exact: true }).fill("1");
  await page.getByRole("combobox", { name: "Since", exact: true }).selectOption("1h");
  await page.getByRole("button", { name: "Search" }).click();
  await eventually("the address says what is searched", () => page.evaluate((id) => location.hash.includes(`endpoint=${id}`) && location.hash.includes("slow_ms=1000"), answered));
  await page.locator("button.decision").first().waitFor();
  for (const name of await page.locator("button.decision .name").allInnerTexts()) assert.equal(name, answered);
  // The one that is asked for, by its request id.
  await page.getByRole("textbox", { name: "Request id", exact: true }).fill(found.request_id);
  await page.keyboard.press("Enter");
  const record = page.locator(".record");
  await record.waitFor();
  assert.equal(await page.locator("button.decision").count(), 1);
  await says(record, "Choice");
  assert.ok((await record.locator(".words p").first().innerText()).length > 20);
  const rows = await record.locator("table tbody tr").count();
  assert.equal(rows, found.candidates.length);
  await says(record.locator("tr.picked"), found.picked);
  await says(record, found.request_id);
  assert.match(await page.locator("button.decision .timeline").getAttribute("aria-label"), /waited .* first token after .* answer .* in all/);
  await picture("decisions-record", { fullPage: true });
  await accessible(page, "one decision");
  await page.getByRole("button", { name: "Clear" }).click();
  await eventually("all are shown", async () => (await page.locator("button.decision").count()) > 1);
  // What the API refuses stands on the page.
  await page.getByRole("textbox", { name: "Until", exact: true }).fill("yesterday");
  await page.getByRole("button", { name: "Search" }).click();
  await says(page.locator("#search-error"), "yesterday");
  await seen.check("400 GET /v1/decisions");
});

test("what an endpoint has left of its weight is a column where a pool goes by curves", async () => {
  const candidate = { id: "card", weight: 0.67, in_flight: 7, cap: 16, load: 12.5, drawn: true };
  const record = { pool: "p", time_ms: Date.now(), reason: "only_one", picked: "card", request_id: "an-id", result: { status: 200, duration_ms: 5, endpoint: "card" } };
  const other = await open(browser, demo.api);
  const byWeight = [["Weight", "0.67"], ["In flight / cap", "7 / 16"], ["Elsewhere", "0"], ["Pending tokens", "0"], ["Load", "12.50"]];
  const byCurve = [byWeight[0], ["Share of weight", "83 %"], ...byWeight.slice(1)];
  for (const [share, columns] of [[undefined, byWeight], [0.833, byCurve]]) {
    const decisions = [{ ...record, candidates: [{ ...candidate, share }] }];
    await other.page.route("**/v1/decisions?*", (route) => route.fulfill({ json: { decisions, explanations: [], matched: 1, kept: 1, oldest_ms: record.time_ms } }));
    await other.goto("#/decisions");
    await other.page.locator(".record tbody td").first().waitFor();
    const texts = (of) => other.page.locator(`.record ${of}.number`).allTextContents();
    const [names, values] = [await texts("thead th"), await texts("tbody td")];
    assert.deepEqual(names.map((name, at) => [name, values[at]]), columns);
  }
  await other.check();
  await other.close();
});

test("Envoys with the version that each has applied", async () => {
  await seen.goto("#/envoys");
  const { version, envoys } = await eventually("all have it", async () => {
    const answer = await api("GET", "/v1/envoys");
    return answer.envoys.every((envoy) => envoy.applied_version === answer.version) && answer;
  });
  await says(page.locator("main"), `Version in force: ${version}`);
  await says(page.locator(`section[aria-label="${envoys[0].node_id}"]`), "in force");
  await seen.check();
});

test("deep links, titles, and what is not there", async () => {
  for (const [hash, title, text] of [
    ["#/pool/demo", "demo · Weighbridge", "fast-card"],
    ["#/pool/none", "none · Weighbridge", "There is no such pool."],
    ["#/endpoint/none", "none · Weighbridge", "There is no such endpoint."],
    ["#/decisions?endpoint=pair&since=15m", "Decisions · Weighbridge", "Records"],
    ["#/nowhere", "Fleet · Weighbridge", "fast-card"],
  ]) {
    await seen.goto(hash);
    await eventually(`${hash} shows ${text}`, async () => (await page.locator("main").textContent()).includes(text));
    assert.equal(await page.title(), title);
  }
  await seen.goto("#/decisions?endpoint=pair&since=15m");
  assert.equal(await page.getByRole("combobox", { name: "Endpoint", exact: true }).inputValue(), "pair");
  // Going elsewhere tells a screen reader: the focus is on the new heading.
  await page.getByRole("link", { name: "Envoys" }).click();
  await eventually("the heading has the focus", () => page.evaluate(() => document.activeElement.tagName === "H1" && document.activeElement.innerText === "Envoys"));
  await seen.check();
});

test("the theme follows the system until one is chosen, and that is remembered", async () => {
  const other = await open(browser, demo.api, { colorScheme: "dark" });
  await other.goto("#/");
  const background = () => other.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await other.page.getByRole("button", { name: "Dark theme" }).click();
  const light = await background();
  assert.notEqual(light, dark);
  await other.page.reload();
  await other.page.locator("main h1").waitFor();
  assert.equal(await background(), light);
  assert.equal(await other.page.getByRole("button", { name: "Dark theme" }).getAttribute("aria-pressed"), "false");
  await other.check();
  await other.close();
});

test("nothing moves where that is not wanted", async () => {
  const other = await open(browser, demo.api, { reducedMotion: "reduce" });
  await other.goto("#/");
  await other.page.locator(".fill").first().waitFor();
  const moving = await other.page.evaluate(() => [...document.querySelectorAll("*")].filter((element) => {
    const { transitionDuration, animationName } = getComputedStyle(element);
    return animationName !== "none" || transitionDuration !== "0s";
  }).length);
  assert.equal(moving, 0);
  await other.close();
});

test("every view is accessible in both themes, on a desk and on a phone", async () => {
  const record = (await api("GET", "/v1/decisions?limit=1")).decisions[0].request_id;
  const views = [["fleet", "#/"], ["endpoint", "#/endpoint/fast-card"], ["decisions", "#/decisions?since=5m"], ["decision", `#/decisions?request_id=${record}`], ["envoys", "#/envoys"], ["alarms", "#/alarms"]];
  const ready = { endpoint: ".plot svg", decisions: "button.decision", decision: ".record", fleet: "tbody tr" };
  for (const [colorScheme, size, viewport] of [["light", "desk", DESK], ["dark", "desk", DESK], ["light", "phone", PHONE]]) {
    const other = await open(browser, demo.api, { colorScheme, viewport });
    for (const [view, hash] of views) {
      await other.goto(hash);
      await other.page.locator(ready[view] ?? "main h1").first().waitFor();
      await accessible(other.page, `${view}, ${colorScheme}, ${size}`);
      await other.page.screenshot({ path: join(PICTURES, `${view}-${colorScheme}-${size}.png`), fullPage: size === "phone" || view === "endpoint" });
    }
    await other.check();
    await other.close();
  }
  // docs/page.png is one of these.
  assert.ok(statSync(join(PICTURES, "fleet-light-desk.png")).size < 300_000);
});
