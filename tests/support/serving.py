"""A server on a free port of 127.0.0.1, in this process, so that tests can look inside."""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pippin.apps.models import Model
from pippin.apps.serve.listen import Listener, open_socket
from pippin.apps.serve.server import make_listener, make_service
from pippin.apps.serve.service import Service
from pippin.apps.serve.settings import ServeSettings
from pippin.runtime.generator import Generator
from pippin.runtime.tokenizer import Tokenizer

from .byte_tokenizer import IM_END, IM_START, VOCAB
from .fake_engine import FakeEngine, hashed

SECONDS = 60  # after which a test has failed


@dataclass
class Served:
    """A running server."""

    url: str  # without a slash at its end
    port: int
    service: Service
    listener: Listener
    thread: threading.Thread

    def stop(self) -> None:
        """What a SIGTERM does; returns when the server has ended."""
        self.listener.should_exit = True
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def idle(self) -> bool:
        """Whether no reply is being written or waits."""
        state = self.service.scheduler.state()
        return state["busy"] == 0 and state["queued"] == 0


def fake_model(tokenizer: Path, model: Callable | None = None, **options: Any) -> Model:
    """A model without weights, with the tokenizer in the folder `tokenizer`."""
    engine = FakeEngine(model or hashed(VOCAB), VOCAB, **{"context": 2048, **options})
    return Model(Generator(engine, Tokenizer.from_folder(tokenizer)), {})


TOOL_TEMPLATE = """{%- if tools %}<|im_start|>system
{{ tools | tojson }} Call as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split("</think>")[-1] }}{%- for c in m.tool_calls or [] %}
<tool_call>
{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""  # Hermes calls, and thinking in <think> and </think>


def with_template(tokenizer: Path, folder: Path, template: str = TOOL_TEMPLATE) -> Path:
    """A copy of a tokenizer's folder, with another chat template."""
    shutil.copytree(tokenizer, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return folder


def says(text: str) -> Callable[[list[int]], np.ndarray]:
    """A model without weights that always answers `text`."""
    begin, reply = [IM_START, *b"assistant\n"], [*text.encode(), IM_END]

    def model(tokens: list[int]) -> np.ndarray:
        ends = (
            i for i in range(len(tokens), len(begin) - 1, -1) if tokens[i - len(begin) : i] == begin
        )
        place = len(tokens) - next(ends, len(tokens))  # 0 within a prompt
        return np.where(np.arange(VOCAB) == reply[min(place, len(reply) - 1)], 20.0, 0.0).astype(
            np.float32
        )

    return model


@contextmanager
def serving(model: Model, name: str = "tiny", **settings: Any) -> Iterator[Served]:
    """A server of `model`; `settings` are fields of `ServeSettings`, and the embedder's."""
    encoder = {key: settings.pop(key) for key in ("embedder", "embedder_name") if key in settings}
    chosen = ServeSettings(**{"port": 0, "slots": 4, "context": 1024, "shutdown": 5.0, **settings})
    service = make_service(model, name, chosen, **encoder)
    listening = open_socket(chosen.host, chosen.port)
    port = listening.getsockname()[1]
    listener = make_listener(service)
    thread = threading.Thread(
        target=lambda: asyncio.run(listener.serve(sockets=[listening])), daemon=True
    )
    thread.start()
    wait_until(lambda: listener.started)
    served = Served(f"http://127.0.0.1:{port}", port, service, listener, thread)
    try:
        yield served
    finally:
        served.stop()
        service.close()
        listening.close()


def wait_until(holds: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Return when `holds()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
