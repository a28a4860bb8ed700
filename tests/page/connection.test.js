// The stream of events: opened again when it goes silent, given back by pages that nobody sees, refused when there are too many.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { between } from "./between.js";
import { launch, open } from "./browser.js";
import { ROOT, aProber, eventually, freePorts } from "./demo.js";

let prober;
let proxy;
let browser;
let seen;
let page;

before(async () => {
  const [engine] = await freePorts(1);
  prober = await aProber({
    filter: { wasm: join(ROOT, "dist", "weighbridge.wasm") },
    store: { path: "prober.redb" },
    pools: [{ name: "p", models: ["m"], served_model: "m", endpoints: [{ id: "card", address: `127.0.0.1:${engine}` }] }],
  });
  [browser] = await Promise.all([launch(), prober.start()]);
  proxy = await between(prober.api);
  seen = await open(browser, proxy.origin);
  page = seen.page;
  // Time passes as ever, and can be moved on.
  await page.clock.install();
});

after(async () => {
  await browser?.close();
  proxy?.close();
  await prober?.end();
});

const connection = () => page.locator(".connection").innerText();
const live = () => eventually("live", async () => (await connection()) === "Live");

async function visible(shown) {
  await page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
  }, !shown);
}

test("a stream that says nothing any more is opened again", async () => {
  await seen.goto("#/");
  await live();
  const before = proxy.streams();
  assert.equal(before.open, 1);
  proxy.forget();
  await page.clock.fastForward(12_000);
  await eventually("another one", () => proxy.streams().opened > before.opened);
  await live();
  await eventually("the silent one is closed", () => proxy.streams().open === 1);
  await seen.check();
});

test("the network coming back, or the page being shown again, is not waited out", async () => {
  let { opened } = proxy.streams();
  proxy.forget();
  await seen.context.setOffline(true);
  await seen.context.setOffline(false);
  await eventually("the network is back", () => proxy.streams().opened > opened);
  await live();
  // A laptop that slept: time has passed, and no timer has run.
  await visible(false);
  ({ opened } = proxy.streams());
  proxy.forget();
  await page.evaluate(() => {
    const then = Date.now;
    Date.now = () => then() + 12_000;
  });
  await visible(true);
  await eventually("it is shown again", () => proxy.streams().opened > opened);
  await live();
  await seen.check();
});

test("a page that nobody sees gives its stream back", async () => {
  await seen.goto("#/");
  await live();
  // Counted in the page: a stream that it closes at once may come to the proxy at any time later.
  await page.evaluate(() => {
    const Given = EventSource;
    window.streams = [];
    window.EventSource = class extends Given {
      constructor(address) {
        super(address);
        window.streams.push(this);
      }
    };
  });
  const streams = () =>
    page.evaluate(() => ({ open: window.streams.filter((stream) => stream.readyState !== EventSource.CLOSED).length, opened: window.streams.length }));
  await visible(false);
  await page.clock.fastForward(31_000);
  const { open, opened } = await streams();
  assert.equal(open, 0);
  await page.clock.fastForward(60_000);
  await page.clock.fastForward(60_000);
  assert.deepEqual(await streams(), { open: 0, opened });
  await eventually("it is given back", () => proxy.streams().open === 0);
  await visible(true);
  await live();
  assert.deepEqual(await streams(), { open: 1, opened: opened + 1 });
  // A glance at another tab costs nothing.
  await visible(false);
  await visible(true);
  await page.clock.fastForward(31_000);
  assert.equal((await streams()).open, 1);
  await live();
  await eventually("the proxy has one", () => proxy.streams().open === 1);
  await seen.check();
});

test("too many streams are said, and the page goes on by itself when there is room", async () => {
  await seen.goto("#/");
  await live();
  const others = new AbortController();
  const reading = [];
  try {
    for (;;) {
      const answer = await fetch(`${prober.api}/v1/events`, { signal: others.signal });
      if (!answer.ok) break;
      reading.push(answer.body.pipeTo(new WritableStream(), { signal: others.signal }).catch(() => null));
    }
    const late = await open(browser, proxy.origin);
    await late.page.goto(`${proxy.origin}/#/`);
    await late.page.locator(".stale", { hasText: `${reading.length + 1} streams are open already` }).waitFor();
    others.abort();
    await late.page.locator("tr[data-endpoint=card]").waitFor();
    await eventually("nothing is said any more", () => late.page.locator(".stale").isHidden());
    await late.check(/^503 GET \/v1\/events$/);
    await late.close();
  } finally {
    others.abort();
    await Promise.all(reading);
  }
  await seen.check();
});
