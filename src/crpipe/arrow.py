"""How pyarrow is set up in a process that only works with arrays."""

from __future__ import annotations

import sys

import pyarrow as pa


class _Hidden:
    """Finds no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def leave_pandas_out() -> None:
    """Let pyarrow go on without pandas, where that is not in use already.

    pyarrow imports it the first time it looks at a value: a quarter of a second and 50 MB of every process,
    for nothing. It tries once. Whoever needs pandas later still gets it, but pyarrow takes its objects for
    plain sequences (nulls are NaN), until it is first asked for a conversion to pandas.
    """
    if "pandas" in sys.modules:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(hidden)
