"""The web page at `/`: files of this package, sent as they are."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "page"
# What the page of `pippin explain` is made of, which this page imports as one module.
_INSIGHT = Path(__file__).parents[1] / "insight" / "page"
_STRIP = ("dom.js", "strip.js")
_EXPORTS = "\nexport { Strip, bar, field, makeTable, percent, visible };\n"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, and no other page may frame this one.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked for again: a new version shows at once
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_contents() -> dict[str, bytes]:
    """The page's files by their paths."""
    files = (file for file in sorted(_FOLDER.rglob("*")) if file.suffix in _TYPES)
    found = {file.relative_to(_FOLDER).as_posix(): file.read_bytes() for file in files}
    strip = b"".join((_INSIGHT / name).read_bytes() for name in _STRIP)
    return found | {"strip.js": strip + _EXPORTS.encode()}


def page_routes() -> list[Route]:
    """A route for each file of the page, and `/` for index.html."""
    contents = page_contents()
    routes = [Route(f"/{name}", _send(name, content)) for name, content in contents.items()]
    return [Route("/", _send("index.html", contents["index.html"])), *routes]


def _send(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "ETag": tag, "Content-Type": _TYPES[Path(name).suffix]}

    async def send(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return send
