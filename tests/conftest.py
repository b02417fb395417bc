"""What all tests share."""

import os
from typing import Any

from hypothesis import settings

from support.consumer_matrix import print_matrix

# A run that decides whether a change lands must not depend on chance; elsewhere, chance finds more.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    # Here and not in tests/consumers: where workers run the tests, this file alone is read.
    print_matrix(terminalreporter)
