"""Wheels that carry a (tiny, fake) model, and the GGUF file in them."""

import io
import os
import zipfile

GGUF = b"GGUF" + os.urandom(2_000_000)  # the store looks at names and bytes, not into the file


def make_wheel(files: dict[str, bytes], name: str = "tiny_model", version: str = "1.0") -> bytes:
    """A wheel with these files beside the usual metadata."""
    info = f"{name}-{version}.dist-info"
    usual = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\n",
        f"{info}/direct_url.json": b"{}",
        f"{name}/__init__.py": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, body in (usual | files).items():
            archive.writestr(path, body)
    return buffer.getvalue()
