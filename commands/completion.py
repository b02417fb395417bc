"""`pippin completion`: the script with which a shell completes `pippin`."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_PIPPIN_COMPLETE"  # how click asks a program for completions


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash  pippin completion bash > ~/.local/share/bash-completion/completions/pippin
    zsh   pippin completion zsh > "${fpath[1]}/_pippin"
    fish  pippin completion fish > ~/.config/fish/completions/pippin.fish

    bash needs version 4.4, newer than the one that macOS has.
    """
    kind = get_completion_class(shell)
    script = kind(ctx.find_root().command, {}, "pippin", VARIABLE)
    # Not `source`, which looks for the shell: the script may be for another machine.
    click.echo(script.source_template % script.source_vars())
