"""The files that contestants run, all made from one GGUF for this run."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import PippinError

_HERE = Path(__file__).parent


class Files:
    """Makes each kind of files once, in `folder`, from the checkpoint `gguf`.

    Kinds: "gguf-FORMAT" (q4_1 is the checkpoint as it is; others requantized by llama.cpp),
    "openvino-FORMAT" (OpenVINO's reading of that GGUF), "onnx-WEIGHTS" (Pippin's export),
    "rtn-BLOCK" (4 bits rounded to nearest, as onnxruntime-genai's builder makes them, from
    Pippin's float32 export). `pythons` are those of the peers that are there, by name.
    """

    def __init__(
        self, gguf: Path, folder: Path, pythons: Mapping[str, str], note: Callable[[str], None]
    ) -> None:
        self._gguf, self._folder, self._pythons, self._note = gguf, folder, pythons, note
        self._made: dict[str, Path] = {"gguf-q4_1": gguf}

    def get(self, kind: str) -> Path:
        """A file or folder of this kind. Raises PippinError when it cannot be made."""
        if kind not in self._made:
            self._note(f"making {kind}")
            program, _, variant = kind.partition("-")
            make = {
                "gguf": self._make_gguf,
                "openvino": self._make_openvino,
                "onnx": self._export,
                "rtn": self._make_rounded,
            }[program]
            target = self._folder / kind
            make(variant, target)
            self._made[kind] = target
        return self._made[kind]

    def _make_gguf(self, variant: str, target: Path) -> None:
        self._run("llama.cpp", "make_gguf.py", str(self._gguf), str(target), variant.upper())

    def _make_openvino(self, variant: str, target: Path) -> None:
        source = self.get(f"gguf-{variant}")
        target.mkdir()
        copy = target / "model.gguf"  # OpenVINO writes beside it, and asks for the ending
        shutil.copyfile(source, copy)
        self._run("openvino-genai", "make_openvino.py", str(copy))
        copy.unlink()
        if not (target / "openvino_model.xml").is_file():
            raise PippinError(f"OpenVINO wrote no model from a GGUF in {variant}")

    def _export(self, weights: str, target: Path) -> None:
        from pippin.export.folder import export_folder

        export_folder(open_checkpoint(self._gguf), target, weights=weights, dialect="gqa")

    def _make_rounded(self, block: str, target: Path) -> None:
        source = self.get("onnx-fp32")
        self._run("onnxruntime-genai", "make_rounded.py", str(source), str(target), block)

    def _run(self, peer: str, script: str, *arguments: str) -> None:
        if peer not in self._pythons:
            raise PippinError(f"its files are made by {peer}, which is not installed")
        command = [self._pythons[peer], str(_HERE / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise PippinError(f"{script}: {lines[-1]}")
