"""`pippin ask`: what goes to which stream, what is refused, and what an interruption leaves."""

import json
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from pippin.apps.documents import index as index_module
from pippin.apps.models import Model
from pippin.cli import cli
from pippin.commands.console import write
from pippin.runtime.errors import InputError
from support.command_line import invoke_pippin, one_line, run_pippin
from support.document_answers import COPROCESS, answering
from support.documents import manuals, small_pdf
from support.fake_embedder import FakeEmbedder

TEXT = "# Shells\n\nA shell reads commands.\n\n## Coprocesses\n\n" + COPROCESS + "\n"
QUESTION = "Which reserved word is a coprocess preceded by?"
Invoke = Callable[..., Result]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.md"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    path = tmp_path / "small.pdf"
    path.write_bytes(small_pdf([[(40, 60, COPROCESS)], [], [(40, 60, "Arrays begin at zero.")]]))
    return path


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run the command in this process with a model that says COPROCESS and then something else."""
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("pippin.apps.embedders.load_embedder", lambda *_, **__: FakeEmbedder())

    def load(name: str, *_: object, **__: object) -> Model:
        return answering(tmp_path / "model", lambda _: f"{COPROCESS} Lisbon is a town.")

    monkeypatch.setattr("pippin.apps.models.load_model", load)

    return partial(invoke_pippin, "ask")


def test_answer_marks_and_sources_are_on_stdout(invoke: Invoke, pdf: Path) -> None:
    done = invoke(pdf, QUESTION, "--no-attention")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"{COPROCESS} [p. 1] Lisbon is a town."
    assert f"  “{COPROCESS}”" in lines
    assert "1 of 2 sentences without a source on these pages." in lines
    assert any(line.split()[:2] == ["1", "p."] for line in lines)
    assert "page 2 has no text" in done.stderr


def test_an_answer_that_ends_early_is_told(invoke: Invoke, notes: Path) -> None:
    done = invoke(notes, QUESTION, "--no-attention", "--max-tokens", 20)
    assert done.stderr == "the answer ends early: --max-tokens is reached\n"
    assert done.stdout.startswith(COPROCESS[:20].strip())


def test_attention_that_cannot_be_shown_is_a_note(invoke: Invoke, notes: Path) -> None:
    done = invoke(notes, QUESTION)
    assert "[notes.md]" in done.stdout.splitlines()[0]
    assert "no attention is shown: " in done.stderr


def test_two_documents_are_named_in_marks(invoke: Invoke, notes: Path, pdf: Path) -> None:
    pdf.write_bytes(small_pdf([[(40, 60, "Arrays begin at zero.")], [(40, 60, "Nothing else.")]]))
    done = invoke(notes, pdf, QUESTION, "--no-attention")
    assert f"{COPROCESS} [notes.md]" in done.stdout
    assert ", small.pdf" in done.stdout


def test_only_the_files_that_are_given_are_searched(invoke: Invoke, notes: Path, pdf: Path) -> None:
    invoke(notes, QUESTION, "--no-attention")
    pdf.write_bytes(small_pdf([[(40, 60, "Arrays begin at zero.")]]))
    done = invoke(pdf, "Where do arrays begin?", "--json")
    document = json.loads(done.stdout)
    assert [one["path"] for one in document["documents"]] == [str(pdf)]
    assert {one["file"] for one in document["passages"]} == {"small.pdf"}


def test_json_is_one_document(invoke: Invoke, pdf: Path) -> None:
    done = invoke(pdf, "-", "--json", "--without-passages", stdin=QUESTION.encode() + b"\n")
    document = json.loads(done.stdout)
    assert (document["question"], document["model"]) == (QUESTION, "smollm2")
    assert document["sentences"][0]["source"]["quote"] == COPROCESS
    assert document["documents"][0]["pages_without_text"] == [2]
    assert document["answer_without_passages"].startswith(COPROCESS)
    assert document["attention"] is None  # the fake engine shows none


def test_the_contrast_comes_last(invoke: Invoke, pdf: Path) -> None:
    done = invoke(pdf, QUESTION, "--without-passages", "--no-attention")
    before, after = done.stdout.split("\nWithout the passages the model says:\n\n")
    assert after == f"{COPROCESS} Lisbon is a town.\n"
    assert "cosine" in before


def test_what_is_not_there_is_said(invoke: Invoke, pdf: Path) -> None:
    done = invoke(pdf, "What is on page 9?")
    assert done.exit_code == 0
    assert done.stdout == "Not found in the document: there is no page 9: small.pdf has 3 pages.\n"
    done = invoke(pdf, "What is on page 3?", "--no-attention")
    assert "searched page 3" in done.stderr


def test_a_report_is_written(invoke: Invoke, pdf: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = invoke(pdf, QUESTION, "--no-attention", "--html", report)
    assert f"wrote {report}" in done.stderr
    assert "data:image/png;base64," in report.read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nots.md", "Why?"], "there is no file nots.md; did you mean notes.md?"),
        (["zzzzzz.qqq", "Why?"], "there is no file zzzzzz.qqq in "),
        (["notes.md", "Why", "not?"], "; QUESTION is the last argument, in quotes"),
        (["n" * 300, "Why?"], "cannot be read: File name too long"),
        (["notes.md"], 'the question comes last: pippin ask notes.md "QUESTION"'),
        (["no/where.md", "Why?"], "there is no file no/where.md: there is no directory no"),
        (["notes.md", "notes.md"], "the last argument, notes.md, is a file; the question comes"),
        (["notes.md", " "], "the question is empty"),
        (["notes.md", "Why?", "--html", "no/r.html"], "there is no directory no to write r.html"),
        (["notes.md", "Why?", "--html", "notes.md"], "would overwrite the document"),
        ([".", "Why?"], ". is a directory; give the files in it"),
    ],
)
def test_mistakes_are_told_before_any_work(
    tmp_path: Path, notes: Path, args: list[str], message: str
) -> None:
    run = run_pippin("ask", *args, env={"PIPPIN_HOME": str(tmp_path / "home")}, cwd=tmp_path)
    assert message in one_line(run)
    assert run.code == 2
    assert not (tmp_path / "home").exists()


def test_what_is_refused_shows_what_was_near(invoke: Invoke, pdf: Path) -> None:
    done = invoke(pdf, "Zebras?")
    assert done.stdout.startswith("Not found in the document: no passage comes near it.\n\n")
    assert f"\n  “{COPROCESS}”\n" in done.stdout
    assert "cosine" in done.stdout
    document = json.loads(invoke(pdf, "Zebras?", "--json").stdout)
    assert document["not_in_the_documents"] == "no passage comes near it"
    assert COPROCESS in {one["nearest_sentence"] for one in document["passages"]}


def test_files_of_one_name_are_told_apart(invoke: Invoke, notes: Path, tmp_path: Path) -> None:
    other = tmp_path / "old" / "notes.md"
    other.parent.mkdir()
    other.write_text("Arrays begin at zero.\n", "utf-8")
    done = invoke(notes, other, QUESTION, "--no-attention")
    assert f"{COPROCESS} [{tmp_path.name}/notes.md]" in done.stdout
    document = json.loads(invoke(notes, other, QUESTION, "--json").stdout)
    names = {one["file"]: one["document"] for one in document["passages"]}
    shas = [one["sha256"] for one in document["documents"]]
    assert names == dict(zip([f"{tmp_path.name}/notes.md", "old/notes.md"], shas, strict=True))


def test_a_copy_goes_by_the_name_that_is_given(invoke: Invoke, notes: Path) -> None:
    invoke(notes, QUESTION, "--no-attention")
    copy = notes.with_name("copy.md")
    copy.write_bytes(notes.read_bytes())
    document = json.loads(invoke(copy, notes, copy, QUESTION, "--json").stdout)
    assert len(document["documents"]) == 1
    assert {one["file"] for one in document["passages"]} == {
        Path(document["documents"][0]["path"]).name
    }
    assert "[copy.md]" in invoke(copy, QUESTION, "--no-attention").stdout


def test_a_document_without_text_is_refused(invoke: Invoke, pdf: Path, notes: Path) -> None:
    pdf.write_bytes(small_pdf([[]]))
    with pytest.raises(InputError, match=r"small\.pdf: page 1 has no text"):
        invoke(pdf, QUESTION)
    assert "page 1 has no text" in invoke(notes, pdf, QUESTION, "--no-attention").stderr


def test_a_document_does_not_steer_the_terminal(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evil\x1b[2J.md"
    path.write_text(f"{COPROCESS}\n\nIt says \x1b]0;pwned\x07 and \x9b31m zero.\n", "utf-8")
    written: list[str] = []
    monkeypatch.setattr("pippin.commands.ask_print.write", lambda text: written.append(text))
    invoke(path, QUESTION, "--no-attention")
    assert "\x1b" in "".join(written)
    out = Out()
    monkeypatch.setattr("sys.stdout", out)
    for text in written:
        write(text)
    assert not set(out.getvalue()) & {"\x1b", "\x07", "\x9b"}
    assert "^[[2J" in out.getvalue()


class Out(StringIO):
    """What `write` takes for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_fit_the_terminal(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = tmp_path / f"{'東京駅' * 9}.md"
    path.write_text(TEXT, "utf-8")
    lines = invoke(path, QUESTION, "--no-attention").stdout.splitlines()
    table = [line for line in lines if line.startswith(("   passage", "1  "))]
    assert len(table) == 2
    quoted = [line for line in lines if line.startswith("  ")]
    assert max(map(cell_len, [*table, *quoted])) <= columns


def test_usage(tmp_path: Path) -> None:
    run = run_pippin("ask", "Why?")
    assert (run.code, one_line(run)[:8]) == (2, "no FILE;")


def test_an_interrupted_run_goes_on_where_it_was(
    invoke: Invoke, notes: Path, pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, original = [], index_module.IndexStore.put

    def put(store: object, document: object, version: str) -> None:
        read.append(document.path)
        original(store, document, version)
        if len(read) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(index_module.IndexStore, "put", put)
    with pytest.raises(click.Abort):  # which `main` makes exit code 130
        CliRunner().invoke(
            cli, ["ask", str(notes), str(pdf), QUESTION], standalone_mode=False,
            catch_exceptions=False,
        )  # fmt: skip
    assert invoke(notes, pdf, QUESTION, "--no-attention").exit_code == 0
    assert read == [notes, pdf]  # each once


def test_an_encrypted_or_damaged_file_is_one_line(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.7\nnothing")
    with pytest.raises(InputError, match=r"bad\.pdf"):
        invoke(tmp_path / "bad.pdf", "Why?")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "mlx"])
def test_smollm2_on_a_page_of_a_real_manual(tmp_path: Path, backend: str) -> None:
    import pypdfium2

    cut = tmp_path / "cut.pdf"
    with pypdfium2.PdfDocument(manuals()["bashref"]) as whole, pypdfium2.PdfDocument.new() as part:
        part.import_pages(whole, range(22, 26))
        part.save(cut)
    run = run_pippin(
        *("ask", cut, "What is a coprocess?", "--json", "--html", tmp_path / "r.html"),
        *("--backend", backend, "--max-tokens", 40, "--top", 2),
        env={"PIPPIN_HOME": str(_home_with_models(tmp_path / "home"))},
    )
    assert run.code == 0, run.err
    document = json.loads(run.out)
    assert document["sentences"]
    for sentence in document["sentences"]:
        shares = sentence["attention"]
        whole_share = sum(shares["passages"]) + sum(
            value for name, value in shares.items() if name != "passages"
        )
        assert whole_share == pytest.approx(1, abs=1e-3)
    sources = [one["source"] for one in document["sentences"] if one["source"]]
    assert sources
    with pypdfium2.PdfDocument(cut) as part:
        for source in sources:
            page = part[source["page"] - 1].get_textpage().get_text_range()
            assert _letters(source["quote"]) in _letters(page)


def _home_with_models(folder: Path) -> Path:
    """A store with the user's models, and an index of its own."""
    from pippin.mlx_model.checkpoints import store

    folder.mkdir()
    for part in ("models", "exports", "locks"):
        (store.home() / part).mkdir(parents=True, exist_ok=True)
        (folder / part).symlink_to(store.home() / part)
    return folder


def _letters(text: str) -> str:
    return "".join(char for char in text if char.isalnum() and char.isascii())
