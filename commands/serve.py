"""`pippin serve`: the model behind OpenAI's and Anthropic's interfaces."""

import os
import signal
from pathlib import Path
from typing import Any

import click

from ..runtime.errors import InputError
from .console import Progress, note
from .options import SectionedCommand, SectionedOption, model_argument, model_options

_KEY = "PIPPIN_SERVE_API_KEY"
_LOADING = ("backend", "weights", "threads", "precise", "kv_bits", "adapter", "fetch")
_LIMITS: dict[str, Any] = {"cls": SectionedOption, "section": "Limits", "show_default": True}
_ACCESS: dict[str, Any] = {"cls": SectionedOption, "section": "Access"}


@click.command("serve", cls=SectionedCommand)
@model_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="0: any free one.",
)
@click.option("--name", help="What clients call the model.  [default: MODEL]")
@click.option("--alias", multiple=True, help="A further name. May be repeated.")
@click.option("--embedder", metavar="MODEL", help="Encoder that answers /v1/embeddings.")
@model_options
@click.option(
    "--slots", type=click.IntRange(1, 256), default=8, help="Replies written at once.", **_LIMITS
)
@click.option(
    "--context",
    type=click.IntRange(16),
    default=4096,
    help="Tokens of a prompt and its reply, at most the model's context.",
    **_LIMITS,
)
@click.option(
    "--queue", type=click.IntRange(0), default=128, help="Replies that may wait.", **_LIMITS
)
@click.option(
    "--chunk",
    type=click.IntRange(1),
    default=128,
    help="Tokens of a prompt that are read between two steps of the replies under way.",
    **_LIMITS,
)
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=600.0, help="Seconds a request.", **_LIMITS
)
@click.option(
    "--body-limit", type=click.IntRange(1), default=8, help="MiB of a request.", **_LIMITS
)
@click.option(
    "--connections", type=click.IntRange(1), default=512, help="Connections at once.", **_LIMITS
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(0),
    default=30.0,
    help="Seconds for replies under way when the server is told to end.",
    **_LIMITS,
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"File with the key that clients must send; {_KEY} in the environment works as well.",
    **_ACCESS,
)
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Web pages of ORIGIN may call, like https://example.org. May be repeated.",
    **_ACCESS,
)
def command(
    model: str,
    name: str | None,
    embedder: str | None,
    alias: tuple[str, ...],
    cors_origin: tuple[str, ...],
    api_key_file: Path | None,
    body_limit: int,
    shutdown_timeout: float,
    **given: Any,
) -> int:
    """Answer OpenAI's and Anthropic's clients with MODEL, and show a chat page at /.

    The first line on stdout is the address, once the server takes requests. SIGTERM and Ctrl-C end
    it: replies under way have --shutdown-timeout seconds to finish.
    """
    from ..apps.serve.settings import ServeSettings

    loading = {name: given.pop(name) for name in _LOADING}
    settings = ServeSettings(
        api_key=_read_key(api_key_file),
        aliases=alias,
        origins=cors_origin,
        body_limit=body_limit << 20,
        shutdown=shutdown_timeout,
        fetch=loading["fetch"],
        **given,
    )
    from ..apps.embedders import load_embedder
    from ..apps.models import load_model
    from ..apps.serve import server

    listening = server.listen(settings)  # before the model is loaded
    with Progress() as progress, listening:
        loaded = load_model(model, stages=progress.stage, repeatable=True, **loading)
        encoder = None
        if embedder is not None:
            options = {name: loading[name] for name in ("backend", "threads", "fetch")}
            encoder = load_embedder(embedder, stages=progress.stage, **options)
        service = server.make_service(
            loaded, name or model, settings, embedder=encoder, embedder_name=embedder or ""
        )
        progress.close()
        host, port = listening.getsockname()[:2]
        click.echo(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        if not settings.loopback and settings.api_key is None:
            note(f"anyone who reaches {host} can use this server; --api-key-file asks for a key")
        ended_by = server.run(service, listening)
    return 128 + signal.SIGINT if ended_by == signal.SIGINT else 0


def _read_key(path: Path | None) -> str | None:
    """The API key: the file's only line, or the environment's. Raises InputError."""
    where = str(path) if path else _KEY
    if path is None:
        key = os.environ.get(_KEY)
        if key is None:
            return None
    else:
        try:
            key = path.expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(f"the API key in {path} cannot be read: {reason}") from None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{where} holds no API key; it is one line of printable ASCII")
    return key
