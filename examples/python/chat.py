"""A chat with an exported folder: onnxruntime, numpy, tokenizers and jinja2, nothing else.

    pip install -r requirements.txt
    python chat.py FOLDER [--weights q4] [--max-tokens 256] [--system TEXT]

One line of standard input is one message. Replies are streamed to standard output; standard error
tells, for each turn, how many tokens the prompt had and how many of them were still in the cache.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

SUFFIXES = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "int8": "_int8"}
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Model:
    """The graph, the keys and values of the tokens so far, and the ids of these tokens."""

    def __init__(self, graph: Path):
        options = ort.SessionOptions()
        options.log_severity_level = 3  # errors: onnxruntime warns of the optional num_logits
        providers = ["CPUExecutionProvider"]
        self.session = ort.InferenceSession(str(graph), options, providers=providers)
        self.past = {
            i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), TYPES[i.type])
            for i in self.session.get_inputs()
            if i.name.startswith("past_key_values.")
        }
        self.outputs = ["logits"] + [n.replace("past_key_values", "present") for n in self.past]
        self.ids: list[int] = []

    def keep_prefix(self, ids: list[int]) -> int:
        """Forget what follows the common beginning with `ids`; returns its length."""
        length = 0
        while length < min(len(self.ids), len(ids) - 1) and self.ids[length] == ids[length]:
            length += 1
        self.past = {name: value[:, :, :length] for name, value in self.past.items()}
        self.ids = self.ids[:length]
        return length

    def append(self, ids: list[int]) -> np.ndarray:
        """Run new tokens; the logits, [V], of the token that follows them."""
        self.ids += ids
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, len(self.ids)), np.int64),
            **self.past,
        }
        logits, *present = self.session.run(self.outputs, feeds)
        self.past = dict(zip(self.past, present, strict=True))
        return logits[0, -1]


class Text:
    """The tokenizer and the chat template of the folder."""

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        generation = json.loads((folder / "generation_config.json").read_text("utf-8"))
        eos = generation["eos_token_id"]
        self.eos = set(eos if isinstance(eos, list) else [eos])
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = self.refuse
        self.template = environment.from_string(self.config["chat_template"])

    @staticmethod
    def refuse(reason: str) -> None:
        raise ValueError(f"the chat template refuses the messages: {reason}")

    def prompt(self, messages: list[dict]) -> list[int]:
        special = {k: v for k, v in self.config.items() if k in ("bos_token", "eos_token")}
        text = self.template.render(messages=messages, add_generation_prompt=True, **special)
        # The template has written the special tokens already.
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def reply(model: Model, text: Text, messages: list[dict], max_tokens: int):
    """Yield the reply piece by piece; a piece ends where its text is certain."""
    prompt = text.prompt(messages)
    kept = model.keep_prefix(prompt)
    print(f"[{len(prompt)} tokens, {kept} of them cached]", file=sys.stderr)
    new, told = [], ""
    logits = model.append(prompt[kept:])
    while True:
        token = int(logits.argmax())  # greedy; to sample, draw from the softmax of the logits here
        if token in text.eos:
            break
        new.append(token)
        said = text.tokenizer.decode(new)
        if not said.endswith("\N{REPLACEMENT CHARACTER}"):  # else half of a character
            yield said[len(told) :]
            told = said
        if len(new) == max_tokens:
            break
        logits = model.append([token])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", choices=SUFFIXES, default="q4")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--system")
    options = parser.parse_args()
    model = Model(options.folder / "onnx" / f"model{SUFFIXES[options.weights]}.onnx")
    text = Text(options.folder)
    messages = [{"role": "system", "content": options.system}] if options.system else []
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.strip()})
        said = ""
        for piece in reply(model, text, messages, options.max_tokens):
            print(piece, end="", flush=True)
            said += piece
        print(flush=True)
        messages.append({"role": "assistant", "content": said})


if __name__ == "__main__":
    main()
