"""What is measured of an LSTM and a decoder, as plain numbers and as pictures."""

from dataclasses import dataclass

from ...bench import Figure
from ..series import Chart, Series

FORGET_ZERO, FORGET_ONE, FORGET_CHRONO = "bias 0", "bias 1", "chrono"
PARALLEL, ONE_BY_ONE = "in parallel", "one by one"

NOTES = (
    "Both networks are random, not trained. The times are those of any weights of these shapes. "
    "The gradient is that at the start of training; training changes it, and how far a trained "
    "network remembers is not shown here.",
    "Read in one call, the LSTM's tokens still wait for each other, one product after the other; "
    "the decoder's do not, but each looks at all before it. How much a call gains from that "
    "depends on how much a machine does at once: little on a few cores.",
    "The LSTM's gradient passes through every token between the two; the decoder's through its "
    "layers alone, shared out among the tokens that attention looks at. An LSTM whose forget gates "
    "start almost open (chrono) keeps its gradient too.",
)


@dataclass(frozen=True)
class Network:
    """One of the two."""

    name: str  # "LSTM" or "decoder"
    parameters: int
    shape: str  # in words


@dataclass(frozen=True)
class Timing:
    """How long one network takes to read a text, in one of the two ways."""

    network: str
    reading: str  # PARALLEL: the whole text in one call; ONE_BY_ONE: one token a call
    lengths: tuple[int, ...]  # tokens
    seconds: tuple[Figure, ...]  # for each length, all of its tokens
    growth: float  # exponent: seconds grow as length^growth, from `fit_from` tokens on


@dataclass(frozen=True)
class Reach:
    """How much gradient reaches a text's first token from the loss at its last one."""

    network: str
    initialisation: str
    distances: tuple[int, ...]  # tokens from the first to the last
    # |dloss/dembedding| of the first token over that of the last; over the seeds. 0 where it is
    # smaller than any float64.
    shares: tuple[Figure, ...]

    @property
    def name(self) -> str:
        """As a table or a legend writes it."""
        return f"{self.network}, {self.initialisation}" if self.initialisation else self.network

    @property
    def kept_per_token(self) -> float:
        """The factor by which a token more changes the gradient, on average over all distances."""
        first, last = self.shares[0].median, self.shares[-1].median
        return (last / first) ** (1.0 / (self.distances[-1] - self.distances[0]))


@dataclass(frozen=True)
class RecurrenceReport:
    """An LSTM and a decoder of equal size on this machine; `dataclasses.asdict` gives JSON."""

    networks: tuple[Network, ...]
    # By network: largest difference of the graph's last logits, read either way, from MLX's,
    # over the largest of MLX's. What is timed computes what the gradient is taken of.
    differences: dict[str, float]
    timings: tuple[Timing, ...]
    fit_from: int  # tokens
    # By network: seconds with one thread over those with `threads`, gain_length tokens in one call.
    thread_gains: dict[str, Figure]  # empty where there is one thread
    gain_length: int  # tokens
    reaches: tuple[Reach, ...]
    rounds: int  # of the timings
    seeds: int  # of the gradients
    onnxruntime: str  # version
    threads: int
    cpu: str
    notes: tuple[str, ...] = NOTES

    def charts(self) -> list[Chart]:
        """Time by length, and gradient by distance; all axes logarithmic."""
        times = tuple(
            Series(
                f"{timing.network}, {timing.reading}",
                tuple(map(float, timing.lengths)),
                tuple(1e3 * figure.median for figure in timing.seconds),
                "ms",
            )
            for timing in self.timings
        )
        gradients = tuple(map(_above_zero, self.reaches))
        return [
            Chart("Time to read a text", "length, tokens", "time, ms", True, True, times),
            Chart(
                "Gradient that reaches the first token",
                "distance to the last token, tokens",
                "gradient, relative to the last token's",
                True,
                True,
                gradients,
            ),
        ]


def _above_zero(reach: Reach) -> Series:
    """The distances at which there is a gradient, which a logarithm needs."""
    points = [
        (float(distance), share.median)
        for distance, share in zip(reach.distances, reach.shares, strict=True)
        if share.median > 0.0
    ]
    return Series(reach.name, tuple(x for x, _ in points), tuple(y for _, y in points), "")
