"""Documents that tests read: manuals of Debian packages, fetched once, and small made-up PDFs."""

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import platformdirs
import pytest

from pippin.mlx_model.checkpoints.lock import locked

# Package → the manuals that are taken from it, by their file names.
_MANUALS = {
    "bash-doc": ("bash.pdf", "bashref.pdf"),
    "gnuplot-doc": ("gnuplot.pdf",),
    "octave-doc": ("octave.pdf", "liboctave.pdf"),
    "pari-doc": ("users.pdf", "libpari.pdf"),
}


def manuals() -> dict[str, Path]:
    """Manuals as PDFs by name: bash, bashref, gnuplot, octave, liboctave, users and libpari (PARI).

    Fetched with apt-get into the user's cache; a test is skipped where that cannot be.
    """
    try:
        return _manuals()
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        last = said.splitlines()[-1] if said else "no reason given"
        pytest.skip(f"skipped, because the Debian manuals cannot be fetched here: {last}")


@functools.cache
def _manuals() -> dict[str, Path]:
    data = Path(platformdirs.user_cache_dir("pippin")) / "test-data"
    found = {}
    for package, names in _MANUALS.items():
        folder = data / f"debian-{package}"
        with locked(data / f"debian-{package}.lock"):
            if not folder.exists():
                _fetch(package, names, folder)
        found |= {Path(name).stem: folder / name for name in names}
    return found


def _fetch(package: str, names: tuple[str, ...], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        place = Path(temporary)
        try:
            _run("apt-get", "download", "-qq", package, cwd=place)
        except subprocess.CalledProcessError:  # a new machine has no package lists
            if os.geteuid() != 0:
                raise
            _run("apt-get", "update", "-qq", cwd=place)
            _run("apt-get", "download", "-qq", package, cwd=place)
        (archive,) = place.glob("*.deb")
        _run("dpkg-deb", "--extract", archive.name, "files", cwd=place)
        complete = place / "complete"
        complete.mkdir()
        for name in names:
            found = [path for path in (place / "files").rglob(name) if not path.is_symlink()]
            shutil.copy(found[0], complete / name)
        complete.rename(folder)


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)


def small_pdf(pages: Sequence[Iterable[tuple[float, float, str]]], rotate: int = 0) -> bytes:
    """A PDF with text at (x, y) points from the top left of pages of 400 × 600 points.

    Any character can stand in it: each has a code of its own, which /ToUnicode maps back. They are
    all 5 points wide and 10 high, monospaced by their look, not by their font's flags.
    """
    placed = [list(page) for page in pages]
    used = sorted({char for page in placed for _, _, text in page for char in text})
    codes = {char: number for number, char in enumerate(used, 1)}
    pairs = "\n".join(
        f"<{code:04x}> <{char.encode('utf-16-be', 'surrogatepass').hex()}>"
        for char, code in codes.items()
    )
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n"
        "/CMapName /All def /CMapType 2 def\n"
        "1 begincodespacerange <0000> <ffff> endcodespacerange\n"
        f"{len(codes)} beginbfchar\n{pairs}\nendbfchar endcmap end end"
    )
    kids = " ".join(f"{6 + 2 * index} 0 R" for index in range(len(placed)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(placed)} >>",
        "<< /Type /Font /Subtype /Type0 /BaseFont /Made /Encoding /Identity-H "
        "/DescendantFonts [4 0 R] /ToUnicode 5 0 R >>",
        "<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Made /DW 500 "
        "/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>",
        _stream(cmap),
    ]
    for page in placed:
        shown = "\n".join(
            f"BT /F 10 Tf 1 0 0 1 {x} {600 - y - 10} Tm "
            f"<{''.join(f'{codes[char]:04x}' for char in text)}> Tj ET"
            for x, y, text in page
        )
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 600] "
            f"/Rotate {rotate} /Resources << /Font << /F 3 0 R >> >> "
            f"/Contents {len(objects) + 2} 0 R >>"
        )
        objects.append(_stream(shown))
    body, places = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    return (
        body
        + (
            f"xref\n0 {count}\n0000000000 65535 f \n{table}"
            f"trailer << /Size {count} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
        ).encode()
    )


def _stream(text: str) -> str:
    return f"<< /Length {len(text.encode())} >>\nstream\n{text}\nendstream"
