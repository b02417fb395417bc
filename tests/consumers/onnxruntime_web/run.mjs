// onnxruntime-web's WebAssembly in Node, which has neither fetch for files nor a page.
// usage: run.mjs FOLDER WEIGHTS REQUEST.json THREADS    prints one JSON document
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-web";
import { SUFFIXES, greedy } from "../greedy.mjs";

const [folder, weights, request, threads] = process.argv.slice(2);
const asked = JSON.parse(readFileSync(request, "utf8"));
ort.env.wasm.numThreads = Number(threads);
const started = performance.now();
const graph = `model${SUFFIXES[weights]}.onnx`;
const parts = [`${graph}_data`, `${graph}_data_1`, `${graph}_data_2`].filter((name) =>
  existsSync(join(folder, "onnx", name)),
);
const read = (name) => new Uint8Array(readFileSync(join(folder, "onnx", name)));
const session = await ort.InferenceSession.create(read(graph), {
  executionProviders: ["wasm"],
  externalData: parts.map((path) => ({ path, data: read(path) })),
  logSeverityLevel: 3,
});
const loaded = (performance.now() - started) / 1000;
const { tokens } = await greedy(ort, session, asked);
console.log(JSON.stringify({ tokens, load_s: loaded }));
process.exit(0); // its workers would keep the process
