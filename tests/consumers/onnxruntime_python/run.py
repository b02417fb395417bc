"""Plain onnxruntime: greedy tokens by the shortest loop that the folder's contract allows.

usage: run.py FOLDER WEIGHTS REQUEST.json    prints one JSON document
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

SUFFIXES = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "int8": "_int8"}
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def main() -> None:
    folder, weights, request = sys.argv[1:]
    asked = json.loads(Path(request).read_text("utf-8"))
    started = time.perf_counter()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    graph = Path(folder, "onnx", f"model{SUFFIXES[weights]}.onnx")
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter() - started
    tokens, logits = generate(session, asked["prompt_ids"], asked["new_tokens"])
    answer = {
        "tokens": tokens,
        "load_s": loaded,
    }
    if asked.get("logits"):
        answer["logits"] = [np.asarray(row, np.float64).tolist() for row in logits]
    print(json.dumps(answer))


def generate(session: ort.InferenceSession, ids: list[int], count: int) -> tuple[list, list]:
    past = {
        i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), TYPES[i.type])
        for i in session.get_inputs()
        if i.name.startswith("past_key_values.")
    }
    names = ["logits"] + [name.replace("past_key_values", "present") for name in past]
    tokens, rows, length, new = [], [], 0, ids
    while len(tokens) < count:
        length += len(new)
        feeds = {
            "input_ids": np.array([new], np.int64),
            "attention_mask": np.ones((1, length), np.int64),
        }
        logits, *present = session.run(names, feeds | past)
        past = dict(zip(past, present, strict=True))
        rows.append(logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
        new = tokens[-1:]
    return tokens, rows


main()
