"""Evaluations without the time that their figures take: nine tenths of it goes into text and layout."""

from contextlib import contextmanager
from pathlib import Path
from unittest import mock

EMPTY = '<svg xmlns="http://www.w3.org/2000/svg"/>'


@contextmanager
def unrendered():
    """Plot every figure and write its files, but with nothing in them; for tests that look at no figure."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    def write(figure, target, **options):
        if hasattr(target, "write"):
            target.write(EMPTY)
        else:
            Path(target).write_text(EMPTY)

    with (
        mock.patch.object(Figure, "savefig", write),
        mock.patch.object(ConstrainedLayoutEngine, "execute", return_value=None),
    ):
        yield
