"""The programs in an exported folder's README, run as they stand there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Container
from itertools import islice, takewhile
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.ort_engine import OrtEngine
from support.byte_tokenizer import END_OF_TEXT, IM_END, VOCAB, write_tokenizer
from support.consumer_packages import Missing, c_program, node, node_modules
from support.consumers import EXAMPLES
from support.exported import tiny_checkpoint

EOS = 2
LENGTH = 40  # of prompt and reply, where none of the replies ends before
KINDS = {
    "fp32": {"weights": "fp32"},
    "fp16": {"weights": "fp16"},
    "q4-int8-cache": {"weights": "q4", "kv": "int8"},
    "sampling": {"weights": "fp32", "sampling": True},
    "standard": {"weights": "fp32", "dialect": "standard"},
    "mlx-ep": {"weights": "q4", "target": "mlx-ep"},
}


def program(folder: Path, language: str) -> str:
    """The README's only block in `language`."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return code


def greedy(folder: Path, ids: list[int], eos: Container[int] = (EOS,)) -> list[int]:
    """The engine's tokens, as the programs end them."""
    session = OrtEngine.from_folder(folder, threads=1).open()
    stream = session.decode(session.prefill(ids), lambda logits, _: logits.argmax())
    reply = islice(stream, LENGTH - len(ids))
    return ids + list(takewhile(lambda token: token not in eos, reply))


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("folder")
    return export_folder(tiny_checkpoint(place / "tiny"), place / "out", **KINDS[request.param])


def run(command: list[str], folder: Path) -> str:
    # As the engine has it: other kernels round otherwise, and int8 makes more of it.
    env = os.environ | {"ORT_GQA_DISABLE_FLASH_ATTENTION": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python(folder):
    said = run([sys.executable, "-W", "error", "-c", program(folder, "python")], folder)
    wanted = greedy(folder, [1, 2, 3])
    assert json.loads(said) == wanted
    assert len(wanted) > 10


def test_python_with_a_tokenizer(tmp_path):
    tiny = tiny_checkpoint(tmp_path / "tiny", vocab_size=VOCAB)
    checkpoint = open_checkpoint(write_tokenizer(tiny.path))
    out = export_folder(checkpoint, tmp_path / "out", weights="fp32")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    said = run([sys.executable, "-c", program(out, "python")], out)
    wanted = greedy(out, tokenizer.encode("The sky is").ids, {IM_END, END_OF_TEXT})
    assert said == tokenizer.decode(wanted) + "\n"
    assert said.startswith("The sky is")
    assert 'dtype: "fp32"' in program(out, "html")


def test_node(folder, tmp_path):
    try:
        command, modules = node(), node_modules("examples-node", EXAMPLES / "node" / "package.json")
    except Missing as missing:
        pytest.skip(f"Node cannot be run here: {missing}")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "onnx").symlink_to(folder / "onnx")
    (tmp_path / "snippet.mjs").write_text(program(folder, "js"), encoding="utf-8")
    said = run([command, "snippet.mjs", "[5, 6, 7, 8]"], tmp_path)
    assert json.loads(said) == greedy(folder, [5, 6, 7, 8])


def test_c(folder, tmp_path):
    source = tmp_path / "snippet.c"
    source.write_text(program(folder, "c"), encoding="utf-8")
    try:
        compiled = c_program(source)
    except Missing as missing:
        pytest.skip(f"C cannot be compiled here: {missing}")
    assert int(run([compiled], folder)) == greedy(folder, [1, 2, 3], ())[3]


def test_the_browser_s_page_waits_for_a_tokenizer(folder):
    assert "```html" not in (folder / "README.md").read_text()
