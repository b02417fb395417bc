"""The exceptions that Pippin raises on purpose; commands print one line and set an exit code."""


class PippinError(Exception):
    """A run failed for a stated reason; commands print the message and exit with 1."""


class InputError(PippinError):
    """What the user gave cannot be used; commands print the message and exit with 2.

    The message is one line: what was found, what was expected, what to do next.
    """


class ContextError(InputError):
    """The tokens asked for do not fit the context; the message names both numbers."""


class Cancelled(PippinError):
    """The caller asked a running prefill or generation to stop."""
