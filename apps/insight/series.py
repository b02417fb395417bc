"""A picture as plain numbers: what measures hands it on, what renders draws it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One line of a chart: y[i] at x[i], x rising."""

    name: str  # as the legend writes it
    x: tuple[float, ...]
    y: tuple[float, ...]  # as many as x, finite; above 0 where the chart's y axis is logarithmic
    unit: str  # of y: "ms", "" for a ratio


@dataclass(frozen=True)
class Chart:
    """Lines that share both axes."""

    title: str
    x_title: str  # names the unit where there is one
    y_title: str
    log_x: bool
    log_y: bool
    series: tuple[Series, ...]
