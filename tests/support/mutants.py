"""Our kernels with one fault put in, and which check finds it."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

from emulator import KernelError
from pippin.kernels import source

from .decode_checks import check_decode, check_quantized_decode
from .prefill_checks import check_prefill, check_quantized_prefill

_FOLDER = Path(__file__).parent.parent / "kernels" / "mutants"


@dataclass(frozen=True)
class Mutant:
    """`text`, which stands once in `files` (names of .metal files), becomes `replacement`."""

    kernel: str
    name: str
    fault: str  # its class
    text: str
    replacement: str
    files: tuple[str, ...]
    probes: tuple[tuple[str, Callable[[], object]], ...]  # name, what raises on a wrong kernel

    @property
    def file(self) -> str:
        """The one that holds `text`."""
        counts = {file: source.metal_source(file).count(self.text) for file in self.files}
        holding = [file for file, count in counts.items() if count]
        if sum(counts.values()) != 1:
            raise ValueError(f"{self.name!r}: its text stands {counts} times, not once")
        return holding[0]

    def caught_by(self) -> tuple[str, str] | None:
        """The probe that fails, and what failed in it; None when the fault gets away."""
        with self._installed():
            for name, probe in self.probes:
                try:
                    probe()
                except KernelError as error:
                    return name, ", ".join(sorted(error.kinds))
                except AssertionError as error:
                    return name, _what_failed(str(error))
        return None

    @contextmanager
    def _installed(self) -> Iterator[None]:
        file, original = self.file, source.metal_source

        def mutated(name: str) -> str:
            text = original(name)
            return text.replace(self.text, self.replacement) if name == file else text

        source.metal_kernel.cache_clear()
        try:
            with mock.patch.object(source, "metal_source", mutated):
                yield
        finally:
            source.metal_kernel.cache_clear()


def all_mutants() -> list[Mutant]:
    """Those of every kernel, in the order of the files."""
    prefill, decode, statistics = map(_module, ("prefill", "decode", "statistics"))
    parts = ("decode", "decode_reduce", "decode_common", "common")
    packed = ("quantized_decode", "affine")
    plain = [probe for probe in decode.PROBES if probe[3] is None]
    quantized = [probe for probe in decode.PROBES if probe[3] is not None]
    by_case = {
        "prefill": (check_prefill, check_quantized_prefill),
        "decode": (check_decode, check_quantized_decode),
    }
    return [
        *_mutants(
            "prefill", prefill.MUTANTS, ("prefill", "tile", "common"), prefill.PROBES, by_case
        ),
        *_mutants("decode", decode.MUTANTS, parts, plain, by_case),
        *_mutants("quantized decode", decode.QUANTIZED_MUTANTS, packed, quantized, by_case),
        *_mutants(
            "statistics", statistics.MUTANTS, ("statistics", "ranking"), statistics.PROBES, by_case
        ),
    ]


def _mutants(
    kernel: str,
    mutants: list[tuple[str, str, str, str]],
    files: tuple[str, ...],
    probes: list[tuple],
    by_case: dict[str, tuple[Callable[..., object], ...]],
) -> list[Mutant]:
    runs = tuple((probe[0], _run_of(kernel, probe, by_case)) for probe in probes)
    return [
        Mutant(kernel, name, fault, text, replacement, files, runs)
        for name, text, replacement, fault in mutants
    ]


def _run_of(
    kernel: str, probe: tuple, by_case: dict[str, tuple[Callable[..., object], ...]]
) -> Callable[[], object]:
    if len(probe) == 2:
        return probe[1]
    _, case, dtype, layout = probe
    plain, quantized = by_case[kernel.split()[-1]]
    return lambda: quantized(case, dtype, *layout) if layout else plain(case, dtype)


def _what_failed(message: str) -> str:
    """The check that an AssertionError comes from."""
    if message.startswith("bytes"):
        return "bytes moved"
    if message.startswith("lse"):
        return "reference, log-sum-exp"
    if "Arrays are not equal" in message:  # which keys, or which rows see none
        return "reference, exact"
    return "reference"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mutants_{name}", _FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
