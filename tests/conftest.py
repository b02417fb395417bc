"""What all tests share."""

import os

from hypothesis import settings

# A run that decides whether a change lands must not depend on chance; elsewhere, chance finds more.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
