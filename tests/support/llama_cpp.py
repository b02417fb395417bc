"""llama.cpp's own converter, from the public source distribution: the reference for our reading."""

import os
import subprocess
import sys
from pathlib import Path

from .wheels import sdist_dir

_SCRIPT = """
import sys
from pathlib import Path
top, outtype, *folders = sys.argv[1:]
sys.path.insert(0, top)
import convert_hf_to_gguf as converter
find = converter.get_model_class
def without_vocabulary(name, mmproj=False):
    found = find(name, mmproj)
    found.set_vocab = lambda self: None  # weights and settings are what is compared
    return found
converter.get_model_class = without_vocabulary
for folder in folders:
    sys.argv = ["convert", folder, "--outfile", folder + ".gguf", "--outtype", outtype]
    converter.main()
"""


def convert_to_gguf(folders: list[Path], outtype: str) -> list[Path]:
    """Convert Hugging Face checkpoints to GGUF files beside them, without their vocabularies."""
    prefixes = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/")
    source = sdist_dir(
        "llama_cpp_python", "0.3.36", tuple(f"vendor/llama.cpp/{prefix}" for prefix in prefixes)
    )
    top = source / "vendor" / "llama.cpp"
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *map(str, [top, outtype, *folders])],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stderr)
    return [folder.with_name(folder.name + ".gguf") for folder in folders]
