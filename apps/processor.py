"""The processor's name, its caches, and the instruction sets that matter to a model."""

import contextlib
import platform
import subprocess
import sys
from pathlib import Path

# what multiplies float16, bfloat16 and int8 numbers, by the system's name for it
_LINUX = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_int8": "AMX INT8",
    "amx_bf16": "AMX BF16",
    "asimd": "NEON",
    "asimddp": "DotProd",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
    "sme": "SME",
}
_MACOS = {
    "hw.optional.neon": "NEON",
    "hw.optional.arm.FEAT_DotProd": "DotProd",
    "hw.optional.arm.FEAT_I8MM": "I8MM",
    "hw.optional.arm.FEAT_BF16": "BF16",
    "hw.optional.arm.FEAT_SME": "SME",
}
_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE = 32 * 2**20  # bytes


def processor_name() -> str:
    """Its name as the system has it, or else its architecture."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return _cpuinfo("model name") or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """Those that decide how fast weights are multiplied; empty where the system does not tell."""
    if sys.platform == "darwin":
        return tuple(name for key, name in _MACOS.items() if _sysctl(key) == "1")
    flags = (_cpuinfo("flags") or _cpuinfo("Features") or "").split()
    return tuple(name for flag, name in _LINUX.items() if flag in flags)


def last_cache_bytes() -> int:
    """Size of the largest cache that this processor's first core reads through."""
    if sys.platform == "darwin":
        return int(_sysctl("hw.perflevel0.l2cachesize") or _UNKNOWN_CACHE)
    with contextlib.suppress(OSError, ValueError):
        texts = [file.read_text().strip() for file in _CACHES.glob("index*/size")]
        return max(int(text.removesuffix("K")) * 1024 for text in texts)
    return _UNKNOWN_CACHE


def _cpuinfo(key: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return None


def _sysctl(key: str) -> str:
    answer = subprocess.run(
        ["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()
