// What the tests of the page stand on: the running demo, a prober by itself, an engine, free ports, waiting.

import { spawn } from "node:child_process";
import { createWriteStream, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { between } from "./between.js";

export const ROOT = resolve(import.meta.dirname, "../..");
const TARGET = process.env.CARGO_TARGET_DIR ?? join(ROOT, "target");
/** Pictures of the page as the tests have seen it. */
export const PICTURES = join(TARGET, "page-screenshots");
mkdirSync(PICTURES, { recursive: true });

const directories = [];
process.on("exit", (code) => {
  // Logs and stores of a failed run are kept to be looked at.
  if (code === 0) for (const directory of directories) rmSync(directory, { recursive: true, force: true });
  else if (directories.length > 0) console.error(`kept: ${directories.join(" ")}`);
});

/** A directory that is gone after the tests, unless one failed. */
export function scratch(name) {
  const directory = mkdtempSync(join(tmpdir(), `weighbridge-${name}-`));
  directories.push(directory);
  return directory;
}

/** Where the page is: at the API, or, with PAGE_FROM_DISK, at a proxy that has the files of prober/page as they are now. */
async function paged(api) {
  if (!process.env.PAGE_FROM_DISK) return { api, close: () => null };
  const proxy = await between(api, join(ROOT, "prober", "page"));
  return { api: proxy.origin, close: proxy.close };
}

/** Loopback ports that nobody listens on now; all different. */
export async function freePorts(count) {
  const servers = await Promise.all(
    Array.from({ length: count }, () => new Promise((done) => {
      const server = createServer().listen(0, "127.0.0.1", () => done(server));
    })),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((done) => server.close(done))));
  return ports;
}

/** The first true answer of `check`, which may throw until then; fails with the last reason after the deadline. */
export async function eventually(what, check, deadlineMs = 30_000) {
  const end = Date.now() + deadlineMs;
  let last = "never true";
  while (Date.now() < end) {
    try {
      const found = await check();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    await pause(100);
  }
  throw new Error(`${what}: not within ${deadlineMs / 1000} s`, { cause: last });
}

/** A program of ours in a directory of its own, unless one is given; ended by `stop`. */
function start(program, args, name, directory = scratch(name)) {
  const log = join(directory, "log");
  const out = createWriteStream(log, { flags: "a" });
  const child = spawn(program, args, { cwd: directory, stdio: ["ignore", "pipe", "pipe"] });
  child.stdout.pipe(out, { end: false });
  child.stderr.pipe(out, { end: false });
  let ended = null;
  const end = new Promise((done) => {
    child.on("error", (error) => done((ended = error.message)));
    child.on("exit", (code, signal) => done((ended = `exit ${code ?? signal}`)));
  });
  return {
    /** Throws when it has ended by itself. */
    check() {
      if (ended !== null) throw new Error(`${program}: ${ended}\n${readFileSync(log, "utf8")}`);
    },
    async stop() {
      if (ended !== null) return;
      child.kill("SIGTERM");
      const timer = setTimeout(() => child.kill("SIGKILL"), 20_000);
      await end;
      clearTimeout(timer);
    },
  };
}

/** What `scripts/run` starts. It answers, and measures its engines from now on, which takes a little over a minute. */
export async function startDemo() {
  const [gateway, admin, api, xds] = (await freePorts(4)).map((port) => `127.0.0.1:${port}`);
  const program = join(TARGET, "debug", "weighbridge-run");
  const demo = start(program, ["--listen", gateway, "--admin", admin, "--api", api, "--xds", xds], "demo");
  await eventually("the demo's API", async () => {
    demo.check();
    return (await fetch(`http://${api}/healthz`)).ok;
  });
  const page = await paged(`http://${api}`);
  const stop = async () => {
    page.close();
    await demo.stop();
  };
  return { ...demo, stop, gateway: `http://${gateway}`, api: page.api };
}

/** An engine on a port of its own: `{address, stop}`. */
export async function anEngine() {
  const [port] = await freePorts(1);
  const address = `127.0.0.1:${port}`;
  const engine = start(join(TARGET, "debug", "engine-sim"), ["--listen", address, "--profile", "instant", "--model", "m", "--warm"], "engine");
  await eventually("the engine", async () => {
    engine.check();
    return (await fetch(`http://${address}/health`)).ok;
  });
  return { address, stop: engine.stop };
}

const PROBER = process.env.WEIGHBRIDGE_PROBER ?? join(ROOT, "dist", "weighbridge-prober");

/** The prober alone, ready to be started, and started again, on the same ports. `config` is its configuration; JSON is YAML, too. */
export async function aProber(config) {
  const [api, xds] = await freePorts(2);
  const directory = scratch("page");
  const file = join(directory, "prober.yaml");
  const listen = { api: { listen: `127.0.0.1:${api}`, ...config.api }, xds: { listen: `127.0.0.1:${xds}` } };
  writeFileSync(file, JSON.stringify({ ...config, ...listen }));
  let running = null;
  const page = await paged(`http://127.0.0.1:${api}`);
  return {
    api: page.api,
    async start() {
      running = start(PROBER, ["--config", file], "prober", directory);
      await eventually("the prober's API", async () => {
        running.check();
        return (await fetch(`http://127.0.0.1:${api}/healthz`)).ok;
      });
    },
    stop: async () => running?.stop(),
    /** For good. */
    async end() {
      page.close();
      await running?.stop();
    },
  };
}
