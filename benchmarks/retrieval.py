"""Does a question find the page that answers it? On manuals of Debian packages.

    python benchmarks/retrieval.py [--manuals NAMES] [--index DIRECTORY] [--json]

retrieval_questions.json has the questions, with the physical numbers of the pages that answer them
and the manuals' sha256. Half of them ("dev") may be looked at to choose settings; "test" tells how
well those do. Without --index the index is made in a temporary directory, and its making timed.
"""

import argparse
import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pypdfium2
from machine import describe

from pippin.apps.documents.index import MODES, Index, SearchResult, open_index
from pippin.apps.embedders import load_embedder
from pippin.mlx_model.checkpoints.files import file_sha256

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.documents import manuals

_DEPTHS = (1, 3, 5)
_PAGES_EACH = 20  # "on page N" questions for each manual and numbering
_MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--index", type=Path, help="keep the index here, and use what it has")
    parser.add_argument("--manuals", help="only these, separated by commas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    asked = json.loads(Path(__file__).with_name("retrieval_questions.json").read_text("utf-8"))
    if arguments.manuals:
        _keep(asked, arguments.manuals.split(","))
    paths = pinned_manuals(asked["manuals"])
    with tempfile.TemporaryDirectory() as temporary:
        embedder = load_embedder("minilm", "onnx")
        with open_index(arguments.index or Path(temporary), embedder) as index:
            result: dict[str, Any] = {"machine": describe()}
            result["indexing"] = _add(index, paths)
            result["rates"] = _rates(index, asked)
            result["pages"] = _page_questions(index, paths, asked["manuals"])
            result["latency_ms"] = _latency(index, asked)
    result["peak_rss_mib"] = _peak_rss() / _MIB
    print(json.dumps(result)) if arguments.json else _print(result)


def _keep(asked: dict[str, Any], names: list[str]) -> None:
    unknown = [name for name in names if name not in asked["manuals"]]
    if unknown:
        sys.exit(f"there is no manual {', '.join(unknown)}; choose {', '.join(asked['manuals'])}")
    asked["manuals"] = {name: asked["manuals"][name] for name in names}
    asked["questions"] = [item for item in asked["questions"] if item["manual"] in names]


def pinned_manuals(pinned: dict[str, str]) -> dict[str, Path]:
    """The manuals; ends with one line where one is of another version."""
    found = manuals()
    for name, sha256 in pinned.items():
        have = file_sha256(found[name])
        if have != sha256:
            sys.exit(
                f"{found[name]} has sha256 {have}, the questions are for {sha256}; "
                "the gold pages hold for Debian 12's manuals only"
            )
    return {name: found[name] for name in pinned}


def _add(index: Index, paths: dict[str, Path]) -> dict[str, float]:
    """Index the manuals; seconds of reading and of embedding, and of adding them once more."""
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def stage(title: str, _unit: str) -> Any:
        nonlocal clock
        kind = title.partition(" ")[0]

        def progress(_done: int, _total: int) -> None:
            nonlocal clock
            now = time.perf_counter()
            seconds[kind] = seconds.get(kind, 0.0) + now - clock
            clock = now

        return progress

    documents = index.add(paths.values(), stage)
    start = time.perf_counter()
    index.add(paths.values())
    pages = sum(len(index.document(document).pages) for document in documents)
    size = sum(file.stat().st_size for file in index.path.parent.glob("index-*")) / _MIB
    return {"pages": pages, "again": time.perf_counter() - start, "mib": size} | seconds


def _rates(index: Index, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Questions with a gold page among the pages of the first k hits, by mode and manual."""
    rows = []
    for mode in MODES:
        for item in asked["questions"]:
            document = asked["manuals"][item["manual"]]
            found = index.search(item["question"], max(_DEPTHS), mode, [document])
            pages = [hit.passage.page for hit in found.hits]
            rank = next((i for i, page in enumerate(pages, 1) if page in item["pages"]), None)
            rows.append({"mode": mode, "rank": rank, "pages": pages, **item, "gold": item["pages"]})
    return rows


def _page_questions(
    index: Index, paths: dict[str, Path], documents: dict[str, str]
) -> list[dict[str, Any]]:
    """Questions that name a page, by its printed number and by its physical one."""
    rows = []
    for name, path in paths.items():
        printed = _printed_numbers(path)
        chosen = list(printed)[:: max(1, len(printed) // _PAGES_EACH)][:_PAGES_EACH]
        for physical in chosen:
            questions = {
                "printed": f"What does it say about arguments on page {printed[physical]}?",
                "physical": f"What does it say about arguments on PDF page {physical}?",
            }
            for numbering, question in questions.items():
                found = index.search(question, documents=[documents[name]])
                right = _right(found, numbering, physical)
                rows.append(
                    {"manual": name, "numbering": numbering, "page": physical, "right": right}
                )
    return rows


def _right(found: SearchResult, numbering: str, physical: int) -> bool:
    pages = {hit.passage.page for hit in found.hits}
    return pages == {physical} and found.filter.numbering == numbering


def _printed_numbers(path: Path) -> dict[int, int]:
    """Physical page to printed number, where the bare text of head or foot shows it.

    Read here without Pippin's reader: a number at either end of the first or the last line, with
    the distance from the physical one that most pages of the manual have.
    """
    seen = []
    document = pypdfium2.PdfDocument(path)
    for physical in range(1, len(document) + 1):
        lines = document[physical - 1].get_textpage().get_text_range().split("\n")
        lines = [line.strip() for line in lines if line.strip()]
        for line in lines[:1] + lines[-1:] if len(lines) > 2 else []:  # not of empty pages
            seen += [(physical, int(n)) for n in re.findall(r"^\d{1,4}\b|\b\d{1,4}$", line)]
    ((distance, _),) = Counter(physical - number for physical, number in seen).most_common(1)
    return {physical: number for physical, number in seen if physical - number == distance}


def _latency(index: Index, asked: dict[str, Any]) -> dict[str, float]:
    """Median milliseconds of a question in all documents, by mode."""
    result = {}
    for mode in MODES:
        times = []
        for item in asked["questions"]:
            start = time.perf_counter()
            index.search(item["question"], mode=mode)
            times.append(1000 * (time.perf_counter() - start))
        result[mode] = statistics.median(times)
    return result


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _print(result: dict[str, Any]) -> None:
    print(result["machine"])
    rows = result["rates"]
    groups = {name: {"manual": name} for name in dict.fromkeys(row["manual"] for row in rows)}
    groups |= {kind: {"kind": kind} for kind in dict.fromkeys(row["kind"] for row in rows)}
    groups |= {"dev": {"half": "dev"}, "test": {"half": "test"}, "all": {}}
    print(f"\n| {'questions':14} | " + " | ".join(f"{mode} @1 @3 @5" for mode in MODES) + " |")
    print("|---" * (len(MODES) + 1) + "|")
    for title, wanted in groups.items():
        cells = []
        for mode in MODES:
            ranks = [
                row["rank"] for row in rows if row["mode"] == mode and wanted.items() <= row.items()
            ]
            hits = [sum(r is not None and r <= k for r in ranks) / len(ranks) for k in _DEPTHS]
            cells.append(" ".join(f"{100 * hit:3.0f} %" for hit in hits))
        print(f"| {title:9} {len(ranks):4} | " + " | ".join(cells) + " |")
    right = Counter((row["numbering"], row["right"]) for row in result["pages"])
    for numbering in ("printed", "physical"):
        total = right[numbering, True] + right[numbering, False]
        print(f"\n{numbering} page numbers: {right[numbering, True]} of {total} right", end="")
    times = result["indexing"]
    print(f"\n\n{times['pages']} pages, index {times['mib']:.0f} MiB", end="")
    for kind in ("reading", "indexing"):
        if kind in times:
            print(f"; {kind} {times['pages'] / times[kind]:.1f} pages/s", end="")
    print(f"; adding them again {times['again']:.2f} s")
    shown = ", ".join(f"{mode} {ms:.0f} ms" for mode, ms in result["latency_ms"].items())
    print(f"a question: {shown}; peak memory {result['peak_rss_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
