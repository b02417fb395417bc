"""Tab completion: commands, and what each of them takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from ...apps.chat import settings
from .slash import Command


class ChatCompleter(Completer):
    """`names(command)` gives the words that a command takes, as /load and /model do."""

    def __init__(
        self, commands: Mapping[str, Command], names: Callable[[str], Iterable[str]]
    ) -> None:
        self._commands, self._names = commands, names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, argument = line[1:].partition(" ")
        if not space:
            for command in self._commands.values():
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.help)
            return
        command = self._commands.get(name)
        if command is None:
            return
        yield from _words(self._names(name), argument)
        if name == "set":
            yield from _settings(argument)
        if "FILE" in command.arguments or (name == "model" and argument[:1] in ("/", ".", "~")):
            yield from self._paths.get_completions(Document(argument), event)


def _words(words: Iterable[str], begun: str) -> Iterator[Completion]:
    for word in words:
        if word.startswith(begun):
            yield Completion(word, -len(begun))


def _settings(argument: str) -> Iterator[Completion]:
    name, space, value = argument.partition(" ")
    yield from _words(settings.values_of(name), value) if space else _words(settings.NAMES, name)
