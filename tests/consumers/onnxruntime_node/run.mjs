// Plain onnxruntime-node. usage: run.mjs FOLDER WEIGHTS REQUEST.json    prints one JSON document
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-node";
import { SUFFIXES, greedy } from "../greedy.mjs";

const [folder, weights, request] = process.argv.slice(2);
const asked = JSON.parse(readFileSync(request, "utf8"));
const started = performance.now();
const graph = join(folder, "onnx", `model${SUFFIXES[weights]}.onnx`);
const session = await ort.InferenceSession.create(graph, { logSeverityLevel: 3 });
const loaded = (performance.now() - started) / 1000;
const { tokens } = await greedy(ort, session, asked);
console.log(JSON.stringify({ tokens, load_s: loaded }));
