// The token: without one the page shows nothing, and what it shows goes away with it.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { accessible, launch, open } from "./browser.js";
import { PICTURES, ROOT, aProber, eventually, freePorts, scratch } from "./demo.js";

let token = randomBytes(24).toString("hex");
let prober;
let tokenFile;
let browser;
let seen;
let page;

before(async () => {
  const [engine] = await freePorts(1);
  tokenFile = join(scratch("token"), "token");
  writeFileSync(tokenFile, `${token}\n`, { mode: 0o600 });
  prober = await aProber({
    api: { token_file: tokenFile },
    filter: { wasm: join(ROOT, "dist", "weighbridge.wasm") },
    store: { path: "prober.redb" },
    pools: [{ name: "secret-pool", models: ["m"], served_model: "m", endpoints: [{ id: "secret-card", address: `127.0.0.1:${engine}` }] }],
  });
  [browser] = await Promise.all([launch(), prober.start()]);
  seen = await open(browser, prober.api);
  page = seen.page;
});

after(async () => {
  await browser?.close();
  await prober?.end();
  // Kept logs may be; a token never.
  rmSync(tokenFile, { force: true });
});

const field = () => page.getByLabel("Token", { exact: true });
const signIn = async (token) => {
  await field().fill(token);
  await page.keyboard.press("Enter");
};
const loggedOut = () => field().waitFor();

test("without the token nothing of the fleet is shown, or answered", async () => {
  await seen.goto("#/endpoint/secret-card");
  await loggedOut();
  assert.ok(!(await page.content()).includes("secret-pool"));
  assert.equal(await page.locator("nav").count(), 0);
  for (const path of ["/v1/fleet", "/v1/events", "/v1/series?since_ms=0", "/v1/alarms", "/v1/decisions"]) assert.equal((await fetch(`${prober.api}${path}`)).status, 401, path);
  await accessible(page, "the form");
  await page.screenshot({ path: join(PICTURES, "login.png") });
  await seen.check();
});

test("a wrong token is said beside the field", async () => {
  await signIn("not the token");
  await page.getByText("This is not the prober's token.").waitFor();
  assert.equal(await field().getAttribute("aria-invalid"), "true");
  await accessible(page, "the form with an error");
  assert.ok(!(await page.content()).includes("secret-pool"));
});

test("the right one opens the place that was asked for, and no script can read the session", async () => {
  await signIn(token);
  await page.locator("h1", { hasText: "secret-card" }).waitFor();
  await eventually("live", async () => (await page.locator(".connection").innerText()) === "Live");
  const [cookie] = await seen.context.cookies();
  assert.deepEqual([cookie.name, cookie.httpOnly, cookie.sameSite], ["weighbridge_session", true, "Strict"]);
  assert.equal(await page.evaluate(() => document.cookie), "");
  assert.ok(!(await page.content()).includes(token));
});

test("a session may change things", async () => {
  await page.getByRole("button", { name: "Pin weight" }).click();
  await page.locator("dialog").getByLabel("Weight").fill("2");
  await page.locator("dialog button[type=submit]").click();
  await eventually("it is pinned", async () => (await page.locator("main").innerText()).includes("pinned"));
  // The cookie alone does not: a page of another site may have the browser send it.
  const [cookie] = await seen.context.cookies();
  const forged = await fetch(`${prober.api}/v1/endpoints/secret-card/pin`, { method: "DELETE", headers: { cookie: `${cookie.name}=${cookie.value}` } });
  assert.ok(forged.status === 401 || forged.status === 403, `${forged.status}`);
});

test("signing out ends the session, here and at the prober", async () => {
  const [cookie] = await seen.context.cookies();
  await page.getByRole("button", { name: "Sign out" }).click();
  await loggedOut();
  assert.ok(!(await page.content()).includes("secret-pool"));
  assert.deepEqual(await seen.context.cookies(), []);
  const again = await fetch(`${prober.api}/v1/fleet`, { headers: { cookie: `${cookie.name}=${cookie.value}` } });
  assert.equal(again.status, 401);
});

test("another token ends every session", async () => {
  await signIn(token);
  await page.locator("nav").waitFor();
  const before = token;
  token = randomBytes(24).toString("hex");
  writeFileSync(tokenFile, `${token}\n`);
  await loggedOut();
  assert.ok(!(await page.content()).includes("secret-pool"));
  await signIn(before);
  await page.getByText("This is not the prober's token.").waitFor();
  await signIn(token);
  await page.locator("nav").waitFor();
});

test("a lost connection is said, and what is shown is marked as old, until it is back", async () => {
  const connection = () => page.locator(".connection").innerText();
  const at = page.url();
  await prober.stop();
  await page.locator(".stale").waitFor();
  assert.equal(await connection(), "Not live");
  assert.ok((await page.locator(".stale").innerText()).startsWith("The connection to the prober is lost. What you see is of "));
  assert.equal(await page.locator(".shell").getAttribute("data-stale"), "");
  assert.ok((await page.locator("main").innerText()).includes("secret-card"));
  await accessible(page, "without a connection");
  await page.screenshot({ path: join(PICTURES, "lost.png") });
  // A prober that has started anew knows no sessions.
  await prober.start();
  await loggedOut();
  await signIn(token);
  await eventually("live", async () => (await connection()) === "Live");
  assert.ok(await page.locator(".stale").isHidden());
  assert.equal(page.url(), at);
});

test("nothing went wrong but what was meant to", async () => {
  // A stream, or what is fetched beside it, may hear of the end of a session before the page does.
  await seen.check(/^401 (GET|POST) \/v1\//);
});
