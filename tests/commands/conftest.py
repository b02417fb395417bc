"""A tiny model, its export, and a store that no test shares with the user."""

from collections.abc import Callable

import pytest
from click.testing import Result

from support import command_line

model, folder, smollm2 = command_line.model, command_line.folder, command_line.smollm2
home = command_line.home


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run a command in this process; the exceptions that `main` reports are raised."""
    return command_line.invoke_pippin
