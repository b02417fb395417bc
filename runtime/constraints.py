"""What a constraint on the text of a reply offers to the sampler; who makes one is not its concern.

V vocabulary.
"""

from typing import Protocol

import numpy as np


class ConstraintState(Protocol):
    """A constraint within one sequence."""

    def allowed(self) -> np.ndarray:
        """Which tokens may come next, bool [V], valid until the next call; an end-of-turn token
        where the text may end. At least one is.

        Raises PippinError when that cannot be computed.
        """

    def accept(self, token: int) -> None:
        """Take the token that was chosen. Raises PippinError for one that was not allowed."""


class Constraint(Protocol):
    """A constraint that any number of sequences can be under."""

    def start(self) -> ConstraintState:
        """The state at the beginning of a reply."""
