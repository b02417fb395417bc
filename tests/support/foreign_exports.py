"""Folders that other exporters write, and what the programs they are made for say on them.

The packages of onnxruntime-genai and optimum lie in directories of their own, which go before
those of the test environment: optimum wants transformers 4. What they share with it (torch, onnx,
onnxruntime) is the environment's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import platformdirs

from pippin.mlx_model.checkpoints.lock import locked

_PACKAGES = {
    "genai": ("onnxruntime-genai==0.18.0", "onnx-ir==1.1.0"),
    "optimum": (
        *("optimum==2.1.0", "optimum-onnx==0.1.0", "transformers==4.57.6", "tokenizers==0.22.2"),
        *("huggingface-hub==0.36.2", "requests", "urllib3", "charset-normalizer"),
    ),
}

_GENAI_GREEDY = """
import json, sys
import onnxruntime_genai as og
folder, ids, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model = og.Model(folder)
og.Tokenizer(model)
params = og.GeneratorParams(model)
params.set_search_options(max_length=len(ids) + count, do_sample=False)
generator = og.Generator(model, params)
generator.append_tokens(ids)
tokens = []
while not generator.is_done() and len(tokens) < count:
    generator.generate_next_token()
    tokens.append(int(generator.get_next_tokens()[0]))
print(json.dumps(tokens))
"""

_OPTIMUM_EXPORT = """
import sys
from optimum.exporters.onnx import main_export
source, out = sys.argv[1:]
task = "text-generation-with-past"
main_export(source, output=out, task=task, do_validation=False, no_post_process=False)
"""

_OPTIMUM_MERGED = """
import sys
from pathlib import Path
from optimum.exporters.onnx import export
from optimum.exporters.onnx.model_configs import LlamaOnnxConfig
from optimum.onnx import merge_decoders
from transformers import AutoModelForCausalLM
source, out = sys.argv[1], Path(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(source)
parts = []
for name, past in (("decoder_model", False), ("decoder_with_past_model", True)):
    config = LlamaOnnxConfig(
        model.config, task="text-generation", use_past=True, use_past_in_inputs=past
    )
    parts.append(out / f"{name}.onnx")
    export(model, config, output=parts[-1], opset=18)
merge_decoders(*parts, save_path=out / "decoder_model_merged.onnx")
"""

_OPTIMUM_QUANTIZE = """
import sys
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig
config = AutoQuantizationConfig.avx2(is_static=False, per_channel=False)
ORTQuantizer.from_pretrained(sys.argv[1]).quantize(
    save_dir=sys.argv[2], quantization_config=config
)
"""

_OPTIMUM_GREEDY = """
import json, sys
import torch
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import AutoTokenizer
folder, ids, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
model = ORTModelForCausalLM.from_pretrained(folder, local_files_only=True)
AutoTokenizer.from_pretrained(folder)
ids = torch.tensor([ids])
tokens = model.generate(
    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
)
print(json.dumps(tokens[0, ids.shape[1] :].tolist()))
"""


class ConsumerError(Exception):
    """The other program ended with an error."""


def genai_folder(
    checkpoint: Path, out: Path, precision: str = "fp32", provider: str = "cpu", **options: Any
) -> Path:
    """What onnxruntime-genai's model builder makes of it; `options` are its extra options."""
    extra = [f"{key}={value}" for key, value in options.items()]
    with tempfile.TemporaryDirectory() as cache:
        _run(
            *("genai", "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", out),
            *("-p", precision, "-e", provider, "-c", cache),
            *(("--extra_options", *extra) if extra else ()),
        )
    return out


def optimum_folder(checkpoint: Path, out: Path) -> Path:
    """What `optimum-cli export onnx` makes of a checkpoint."""
    _run("optimum", "-c", _OPTIMUM_EXPORT, checkpoint, out)
    return out


def merged_folder(checkpoint: Path, optimum: Path, out: Path) -> Path:
    """A decoder that is two graphs in one, as optimum made them before, of a Llama; `optimum` is
    the folder from which the other files come.
    """
    shutil.copytree(optimum, out, ignore=shutil.ignore_patterns("*.onnx"))
    _run("optimum", "-c", _OPTIMUM_MERGED, checkpoint, out)
    for part in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        (out / part).unlink()
    return out


def quantized_folder(optimum: Path, out: Path) -> Path:
    """An optimum folder after its dynamic int8 quantization."""
    _run("optimum", "-c", _OPTIMUM_QUANTIZE, optimum, out)
    return out


def genai_greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    """Greedy tokens of onnxruntime-genai's own loop. Raises ConsumerError."""
    return json.loads(_run("genai", "-c", _GENAI_GREEDY, folder, json.dumps(ids), count))


def optimum_greedy(folder: Path, ids: list[int], count: int) -> list[int]:
    """Greedy tokens of optimum's ORTModelForCausalLM. Raises ConsumerError."""
    return json.loads(_run("optimum", "-c", _OPTIMUM_GREEDY, folder, json.dumps(ids), count))


def _run(packages: str, *arguments: Any) -> str:
    """The last line that a Python with these packages prints."""
    environment = os.environ | {
        "PYTHONPATH": str(_directory(packages)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConsumerError(done.stderr[-3000:])
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else ""


def _directory(packages: str) -> Path:
    """Where they are installed; the first time this takes a download."""
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    requirements = _PACKAGES[packages]
    parent = Path(platformdirs.user_cache_dir("pippin")) / "test-data"
    target = parent / f"{requirements[0].replace('==', '-')}-{version}"
    with locked(parent / f"{target.name}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=parent) as temporary:
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
                subprocess.run([*pip, f"{temporary}/all", *requirements], check=True)
                Path(temporary, "all").rename(target)
    return target
