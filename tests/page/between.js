// A proxy between the page and the prober: it can forget connections, as routers do, and it can have the page's files from the disk.

import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { basename, join } from "node:path";

/** Passes everything on to `api`; with `page`, a directory, the bodies of `/` and `/page/...` come from there. */
export async function between(api, page = null) {
  const events = new Set();
  let opened = 0;
  const body = async (path) => (page === null ? null : path === "/" ? readFile(join(page, "index.html")) : path.startsWith("/page/") ? readFile(join(page, basename(path))) : null);

  const server = createServer((asked, answer) => {
    const { pathname } = new URL(asked.url, api);
    const connection = { heard: true };
    if (pathname === "/v1/events") {
      opened += 1;
      events.add(connection);
      answer.on("close", () => events.delete(connection));
    }
    const headers = { ...asked.headers };
    if (page !== null) delete headers["if-none-match"];
    const onward = request(`${api}${asked.url}`, { method: asked.method, headers }, async (given) => {
      const own = given.statusCode === 200 ? await body(pathname) : null;
      if (own !== null) {
        given.resume();
        delete given.headers["content-encoding"];
        answer.writeHead(200, { ...given.headers, "content-length": own.length, "cache-control": "no-store" }).end(own);
        return;
      }
      answer.writeHead(given.statusCode, given.headers);
      given.on("data", (part) => connection.heard && answer.write(part));
      given.on("end", () => answer.end());
      given.on("error", () => answer.destroy());
    });
    onward.on("error", () => answer.destroy());
    answer.on("close", () => onward.destroy());
    asked.pipe(onward);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return {
    origin: `http://127.0.0.1:${server.address().port}`,
    /** Streams of events: that are open, and that ever were. */
    streams: () => ({ open: events.size, opened }),
    /** Nothing comes through what is open now, and nobody is told. */
    forget() {
      for (const connection of events) connection.heard = false;
    },
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}
