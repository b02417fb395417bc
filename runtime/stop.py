"""Stop strings: end a reply before the first of several texts, wherever chunks are cut."""

from collections.abc import Sequence

from .errors import InputError


class StopStrings:
    """Looks for stop strings in a text that arrives in chunks, and never lets part of one out.

    The text ends before the stop that begins first; of two that begin at the same place it does
    not matter which one is meant. What could still become a stop is held back: at most one
    character less than the longest stop. `stopped` says whether one was met.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InputError for an empty stop string, which would end every reply at once."""
        if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
            raise InputError(f"stop strings are a list of texts; got {stops!r:.60}")
        if not all(stops):
            raise InputError("a stop string is empty; leave it out")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> tuple[str, bool]:
        """Take the next chunk; returns the text that is safe to show, and whether a stop was met.

        After a stop, all further text is dropped.
        """
        if self.stopped:
            return "", True
        text = self._held + text
        met = _first(text, self._stops)
        open_ = min((_open_end(text, stop) for stop in self._stops), default=len(text))
        if met is not None and met <= open_:
            self._held, self.stopped = "", True
            return text[:met], True
        # Either nothing was met, or a longer stop may have begun earlier: wait for its end.
        self._held = text[open_:]
        return text[:open_], False

    def flush(self) -> str:
        """The reply has ended: what was held back, up to a stop in it."""
        held, self._held = self._held, ""
        met = _first(held, self._stops)
        if met is None:
            return held
        self.stopped = True
        return held[:met]


def _first(text: str, stops: tuple[str, ...]) -> int | None:
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _open_end(text: str, stop: str) -> int:
    """Where the longest end of `text` starts that `stop` could begin with; len(text) if none."""
    for start in range(max(0, len(text) - len(stop) + 1), len(text)):
        if stop.startswith(text[start:]):
            return start
    return len(text)
