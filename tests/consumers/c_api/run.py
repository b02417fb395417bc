"""The C example, which speaks token ids alone, asked for the reply to one prompt.

usage: run.py CHAT FOLDER WEIGHTS REQUEST.json    prints one JSON document
"""

import json
import subprocess
import sys
from pathlib import Path

SUFFIXES = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "int8": "_int8"}

chat, folder, weights, request = sys.argv[1:]
asked = json.loads(Path(request).read_text("utf-8"))
graph = Path(folder, "onnx", f"model{SUFFIXES[weights]}.onnx")
prompt = " ".join(map(str, asked["prompt_ids"]))
done = subprocess.run(
    [chat, str(graph), "512", str(asked["new_tokens"]), "-1"],
    input=f"{prompt}\n",
    stdout=subprocess.PIPE,
    text=True,
    check=True,
)
tokens = [int(word) for word in done.stdout.split()]
print(json.dumps({"tokens": tokens}))
