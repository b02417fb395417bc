"""optimum-onnx: ORTModelForCausalLM and AutoTokenizer on the folder, transformers' greedy search.

usage: run.py FOLDER WEIGHTS REQUEST.json    prints one JSON document
"""

import json
import sys
import time
from pathlib import Path

import torch
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import AutoTokenizer

SUFFIXES = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "int8": "_int8"}

folder, weights, request = sys.argv[1:]
asked = json.loads(Path(request).read_text("utf-8"))
torch.set_num_threads(1)
started = time.perf_counter()
model = ORTModelForCausalLM.from_pretrained(
    folder, subfolder="onnx", file_name=f"model{SUFFIXES[weights]}.onnx", local_files_only=True
)
loaded = time.perf_counter() - started
inputs = {"input_ids": torch.tensor([asked["prompt_ids"]])}
if "messages" in asked:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    inputs = tokenizer.apply_chat_template(
        asked["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
prompt = inputs["input_ids"][0].tolist()
output = model.generate(**inputs, max_new_tokens=asked["new_tokens"], do_sample=False)
tokens = output[0, len(prompt) :].tolist()
print(json.dumps({"prompt_ids": prompt, "tokens": tokens, "load_s": loaded}))
