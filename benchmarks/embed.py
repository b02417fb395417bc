"""Speed and agreement of the encoder MiniLM's backends: `python benchmarks/embed.py [--json]`.

All of them embed the same sentences, interleaved; errors are differences of similarities from
those of ONNX fp32, which the tests hold against transformers.
"""

import json
import statistics
import sys
import time

import numpy as np
from machine import describe

from pippin.apps.embedders import load_embedder

_WEIGHTS = ("fp32", "fp16", "int8", "q4")
_ROUNDS = 5
_WEATHER = ("stops", "begins", "goes on", "turns to snow")
_SENTENCES = [
    f"Sentence number {n} says that the train of {n % 24} o'clock is late, that the rain "
    f"{_WEATHER[n % 4]} and that somebody in row {n % 9} has forgotten an umbrella."
    for n in range(128)
]


def main() -> None:
    embedders = {
        weights: load_embedder("minilm", "onnx", weights=weights, threads=2) for weights in _WEIGHTS
    }
    seconds: dict[str, list[float]] = {weights: [] for weights in _WEIGHTS}
    vectors = {weights: each.embed(_SENTENCES) for weights, each in embedders.items()}
    for _ in range(_ROUNDS):
        for weights, embedder in embedders.items():
            start = time.perf_counter()
            embedder.embed(_SENTENCES)
            seconds[weights].append(time.perf_counter() - start)
    exact = vectors["fp32"] @ vectors["fp32"].T
    rows = [
        {
            "weights": weights,
            "texts_per_second": len(_SENTENCES) / statistics.median(seconds[weights]),
            "largest_error": float(np.abs(vectors[weights] @ vectors[weights].T - exact).max()),
        }
        for weights in _WEIGHTS
    ]
    if "--json" in sys.argv[1:]:
        print(json.dumps({"machine": describe(), "rows": rows}))
        return
    print(describe())
    for row in rows:
        print(
            "{weights:5} {texts_per_second:7.0f} texts/s  error {largest_error:.1e}".format(**row)
        )


if __name__ == "__main__":
    main()
