"""Relative position bias: scores change by the distance of query and key (T5, arXiv:1910.10683).

Distances fall into buckets: near ones each have one, farther ones share one in logarithmic steps,
and all from `max_distance` on share the last. A learned table has a value a bucket and head.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RelativeBias:
    """How distances fall into buckets."""

    buckets: int
    max_distance: int  # tokens
    bidirectional: bool  # half the buckets are for keys after the query; otherwise they are as 0

    def distance_buckets(self) -> np.ndarray:
        """The bucket of each distance key − query from −max_distance to max_distance, int64 [2M+1].

        Distances beyond either end are in the bucket of that end. The logarithm is in float32, as
        in the code that the models were trained with.
        """
        distance = np.arange(-self.max_distance, self.max_distance + 1)
        count, first = self.buckets, np.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            first = np.where(distance > 0, count, 0)
            away = np.abs(distance)
        else:
            away = np.maximum(-distance, 0)
        exact = count // 2
        ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
        step = ratio / np.float32(math.log(self.max_distance / exact)) * np.float32(count - exact)
        far = np.minimum(exact + step.astype(np.int64), count - 1)
        return first + np.where(away < exact, away, far)
