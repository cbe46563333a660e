"""What a library raises for a file that it cannot read, as an error that names the file and what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.causes import OF_FORM, refuse_machine_error
from crpipe.core.errors import CrpipeError, FormatError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_SHOWN = 300


class Reading:
    """Turn the exceptions ``damaged`` of the block into a FormatError that names the file.

    With Exception, whatever the library raises. An error of the machine is a MachineError.
    """

    def __init__(self, path: Path, *damaged: type[Exception]) -> None:
        self._path, self._damaged = path, damaged

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise FormatError in place of the block's exception, MachineError where the machine is to blame."""
        if not isinstance(error, self._damaged) or isinstance(error, CrpipeError):
            return
        refuse_machine_error(error, self._path, OF_FORM, OF_FORM)
        text = (" ".join(str(error).split()) or type(error).__name__)[:_SHOWN]
        raise FormatError(
            f"{self._path}: cannot be read whole ({text}); it is truncated, damaged or of another format; "
            "have it copied or made again"
        ) from error
