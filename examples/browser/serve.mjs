// Serves this directory, and an exported folder as /model/, to the browser on this machine.
//
//   npm install
//   node serve.mjs FOLDER [PORT]
//
// The two Cross-Origin headers are what lets onnxruntime-web use threads: send them from your own
// server too.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize, resolve } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
};

const [folder, port = "8080"] = process.argv.slice(2);
const here = import.meta.dirname;

function file(url) {
  const path = normalize(decodeURIComponent(new URL(url, "http://localhost").pathname));
  if (path.startsWith("/model/")) return join(resolve(folder), path.slice("/model/".length));
  return join(here, path.endsWith("/") ? `${path}index.html` : path);
}

const server = createServer((request, response) => {
  const path = file(request.url);
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found?.isFile()) return response.writeHead(404).end();
  response.writeHead(200, {
    "Content-Type": TYPES[extname(path)] ?? "application/octet-stream",
    "Content-Length": found.size,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
  });
  if (request.method === "HEAD") return response.end();
  createReadStream(path).pipe(response);
});
server.listen(Number(port), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${server.address().port}/`);
});
