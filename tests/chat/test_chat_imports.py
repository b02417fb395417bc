"""What a chat loads before it is asked for documents or attention."""

import subprocess
import sys

_PROGRAM = """
import sys
import pippin.commands.chat_terminal.begin, pippin.apps.chat.keeper
print(*sys.modules)
"""


def test_documents_and_insight_are_loaded_when_they_are_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, check=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "pippin.apps.chat.documents" in loaded
    late = ("pippin.apps.documents.index", "pippin.apps.documents.read", "pippin.apps.insight")
    assert not loaded & {*late, "sqlite3", "pypdfium2", "html.parser"}
