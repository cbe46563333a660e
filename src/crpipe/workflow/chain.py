"""Which steps a campaign has, and in which order its links are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.paths import OUTLIERS

if TYPE_CHECKING:
    from crpipe.config.loading import Config


def has_outliers(settings: Config) -> bool:  # noqa: ARG001 - the one place where a fixed layout is asked for
    """Tell whether events may have more items than the threshold.

    Without them nothing is consolidated, and the chain of training ends with the last range.
    """
    return True


def side_tables(settings: Config) -> bool:
    """Tell whether the campaign has side tables, which are staged before anything is split."""
    return bool(getattr(settings.source, "tables", None))


def ranges(settings: Config) -> list[str]:
    """Name the ranges of the campaign, in order."""
    return [str(name) for name in settings.all_ranges()]


def links(settings: Config) -> list[str]:
    """Name the links of the chain of training: the ranges, then the outliers if there can be any."""
    return [*ranges(settings), *([OUTLIERS] if has_outliers(settings) else [])]


def before(names: list[str], name: str, steps: int = 1) -> str | None:
    """Name the range that comes ``steps`` before ``name``, if there is one."""
    index = names.index(name) - steps
    return names[index] if index >= 0 else None


def reference_ranges(settings: Config) -> list[str]:
    """Name the ranges that a quantile threshold is computed from; none if the threshold is a number."""
    if settings.split.quantile is None:
        return []
    return list(settings.split.reference_ranges) or ranges(settings)[:1]
