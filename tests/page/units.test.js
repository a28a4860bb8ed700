// What of the page is pure, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { changes } from "../../prober/page/announce.js";
import { progress } from "../../prober/page/burst.js";
import { ago, count, moment, percent, rate, span, tokens } from "../../prober/page/format.js";
import { ticks } from "../../prober/page/plot.js";
import { link, parse } from "../../prober/page/router.js";
import { statusOf } from "../../prober/page/status.js";
import { times } from "../../prober/page/timeline.js";

test("figures that are not known are a dash, never a zero", () => {
  for (const format of [count, rate, span, tokens, percent, ago]) for (const unknown of [null, undefined, Number.NaN]) assert.equal(format(unknown), "–");
  assert.equal(moment("never"), "–");
});

test("figures are as people read them", () => {
  assert.deepEqual([rate(99.94), rate(99.96), rate(1234.5)], ["99.9", "100", "1,235"]);
  assert.deepEqual([span(999), span(1000), span(9_999), span(12_340), span(125_000), span(7_260_000)], ["999 ms", "1.00 s", "10.00 s", "12.3 s", "2 min 5 s", "2 h 1 min"]);
  assert.deepEqual([tokens(65_536), tokens(1 << 20), tokens(200_000), tokens(512)], ["64k", "1M", "200k", "512"]);
  assert.deepEqual([percent(0), percent(0.004), percent(0.5), percent(1)], ["0 %", "0.4 %", "50 %", "100 %"]);
  assert.deepEqual([ago(-5), ago(59_000), ago(90_000), ago(3_600_000)], ["now", "59 s ago", "2 min ago", "1 h ago"]);
});

test("an address leads back to where it was made", () => {
  for (const place of [["fleet"], ["endpoint", "pair"], ["pool", "a b/ü?#"], ["decisions", "", { endpoint: "x", since: "15m" }], ["envoys"]]) {
    const [view, name = "", query = {}] = place;
    assert.deepEqual(parse(link(view, name, query)), { view, name, query });
  }
  for (const broken of ["", "#", "#/", "#/nowhere/x"]) assert.equal(parse(broken).view, "fleet");
  assert.equal(parse("#/endpoint/%E0%A4%A").name, "");
});

test("the parts of a request's time add up to all of it", () => {
  const of = (wait, ttft, duration) => times({ queue: wait ? { wait_ms: wait } : undefined, result: { ttft_ms: ttft, duration_ms: duration } });
  assert.deepEqual(of(0, 100, 1_000), { wait: 0, first: 100, answer: 900, total: 1_000 });
  assert.deepEqual(of(300, 400, 1_000), { wait: 300, first: 100, answer: 600, total: 1_000 });
  assert.deepEqual(of(0, undefined, 500), { wait: 0, first: 500, answer: 0, total: 500 });
  // Refused after waiting in vain; clocks that disagree.
  assert.deepEqual(times({ queue: { wait_ms: 200 } }), { wait: 200, first: 0, answer: 0, total: 200 });
  assert.deepEqual(of(0, 600, 500), { wait: 0, first: 500, answer: 0, total: 500 });
});

test("scales have round steps and reach the most", () => {
  for (const most of [0.3, 1, 7, 99, 480, 975, 12_000]) {
    const values = ticks(most);
    assert.equal(values[0], 0);
    assert.ok(values.at(-1) >= most && values.length >= 3 && values.length <= 7, `${most}: ${values}`);
  }
});

test("what is said is what has changed", () => {
  const endpoint = (id, state, ejected = 0) => ({ id, state, ejected, pool: "p" });
  const fleet = (endpoints, alarms = []) => ({ endpoints, alarms });
  const before = fleet([endpoint("a", "ready"), endpoint("b", "ready"), endpoint("c", "ready")]);
  assert.deepEqual(changes(null, before), []);
  assert.deepEqual(changes(before, before), []);
  const alarm = { code: "store_down", subject: { kind: "prober" }, message: "3 changes wait" };
  const after = fleet([endpoint("a", "draining"), endpoint("b", "ready", 1), endpoint("d", "new")], [alarm]);
  assert.deepEqual(changes(before, after), ["a is draining.", "b is ejected.", "d has joined p.", "c is gone.", "Alarm: 3 changes wait."]);
  // Other words of the same alarm are no news.
  assert.deepEqual(changes(after, { ...after, alarms: [{ ...alarm, message: "4 changes wait" }] }), []);
});

test("of a probe that another prober runs nothing is made up", () => {
  const burst = { kind: "demand", phase: "waiting", done: 0, of: 0, begun_ms: 0, phase_begun_ms: 0, expected_ms: 10 };
  const endpoint = { state: "probing", burst, ejected: 0, cooling_down: 0 };
  assert.deepEqual(statusOf(endpoint), { tone: "busy", word: "Waiting to probe", detail: "until it is idle" });
  endpoint.burst = { ...burst, elsewhere: true };
  assert.deepEqual(statusOf(endpoint), { tone: "busy", word: "Probing", detail: "another prober measures it" });
  for (const phase of ["waiting", "kept", "sweep"]) assert.equal(progress({ ...burst, phase, of: 4, done: 2, elsewhere: true }), 0);
});
