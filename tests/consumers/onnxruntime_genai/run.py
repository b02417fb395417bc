"""onnxruntime-genai: its own tokenizer, chat template and loop, as genai_config.json tells it.

usage: run.py FOLDER WEIGHTS REQUEST.json    prints one JSON document
"""

import json
import sys
import time
from pathlib import Path

import onnxruntime_genai as og

folder, weights, request = sys.argv[1:]
asked = json.loads(Path(request).read_text("utf-8"))
started = time.perf_counter()
model = og.Model(folder)
loaded = time.perf_counter() - started
prompt = asked["prompt_ids"]
if "messages" in asked:
    tokenizer = og.Tokenizer(model)
    messages = json.dumps(asked["messages"])
    text = tokenizer.apply_chat_template(messages=messages, add_generation_prompt=True)
    prompt = tokenizer.encode(text).tolist()
params = og.GeneratorParams(model)
params.set_search_options(max_length=len(prompt) + asked["new_tokens"], do_sample=False)
generator = og.Generator(model, params)
generator.append_tokens(prompt)
tokens = []
while not generator.is_done():
    generator.generate_next_token()
    tokens.append(int(generator.get_next_tokens()[0]))
print(json.dumps({"prompt_ids": prompt, "tokens": tokens, "load_s": loaded}))
