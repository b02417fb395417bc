"""Files that go along with a message in full."""

from pathlib import Path

import pytest

from pippin.apps.chat.attachments import attachment, read_with_text
from pippin.apps.chat.messages import for_template, user_message, without_old_passages
from pippin.apps.documents.user_file import existing
from pippin.runtime.errors import InputError
from support.documents import small_pdf


def _attachment(path: Path) -> dict[str, str]:
    return attachment(read_with_text(existing(str(path))))


def test_the_text_reaches_the_template_and_stays_apart(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("\ufeffGröße\r\n  2\r\n".encode())
    file = _attachment(tmp_path / "notes.txt")
    assert file == {"name": "notes.txt", "text": "Größe\n  2"}
    message = user_message("What?", [file])
    assert message["content"] == "What?"
    sent = for_template([message])
    assert sent == [
        {"role": "user", "content": '<file name="notes.txt">\nGröße\n  2\n</file>\n\nWhat?'}
    ]


def test_pages_keep_their_numbers(tmp_path: Path) -> None:
    pages = [[(40, 40, "first words")], [], [(40, 40, "last words")]]
    (tmp_path / "a.pdf").write_bytes(small_pdf(pages))
    text = "[p. 1]\nfirst words\n\n[p. 2]\n\n[p. 3]\nlast words"
    assert _attachment(tmp_path / "a.pdf") == {"name": "a.pdf", "text": text}
    (tmp_path / "one.pdf").write_bytes(small_pdf(pages[:1]))
    assert _attachment(tmp_path / "one.pdf")["text"] == "first words"
    (tmp_path / "a.html").write_text("<p>Some <b>words</b><script>no()</script>")
    assert _attachment(tmp_path / "a.html")["text"] == "Some words"


def test_passages_are_sent_with_the_message_that_is_to_be_answered_alone() -> None:
    own = {"name": "a", "text": "own"}
    found = {"name": "b p. 1", "text": "found", "document": "0", "page": 1}
    asked = user_message("one", [own, found])
    answered = [asked, {"role": "assistant", "content": "yes"}]
    kept = user_message("one", [own])
    assert without_old_passages([asked]) == [asked]
    assert without_old_passages(answered) == [kept, answered[1]]
    assert without_old_passages([*answered, asked]) == [kept, answered[1], asked]
    assert asked["attachments"] == [own, found]
    assert without_old_passages([]) == []


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("a.png", b"\x89PNG\r\n", "a picture"),
        ("a.txt", b"caf\xe9", "no UTF-8 text at byte 3"),
        ("a.bin", b"a\0b", "NUL character"),
        ("empty", b" \n", "is empty"),
        ("a.pdf", small_pdf([[]]), "page 1 has no text"),
        ("b.pdf", b"%PDF-1.7\nnothing", "damaged"),
    ],
)
def test_what_has_no_text(
    tmp_path: Path, name: str, data: bytes, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.apps.documents.ocr.available", lambda: False)
    (tmp_path / name).write_bytes(data)
    _refused(tmp_path / name, part)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    _refused(tmp_path, "is a directory")
    _refused(tmp_path / "note.txt", f"did you mean {tmp_path / 'notes.txt'}?")
    _refused(tmp_path / "no" / "x", "there is no directory")
    _refused(tmp_path / ("n" * 300), "cannot be read")


def _refused(path: Path, part: str) -> None:
    with pytest.raises(InputError) as caught:
        _attachment(path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
