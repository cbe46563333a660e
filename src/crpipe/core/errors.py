"""Every error of crpipe, with its exit code: what is wrong, where, and what to do.

CrpipeError                     exit 1
├── ConfigError                 exit 2    a key or a value in the configuration
├── SourceError                 exit 66   the source does not hold what it should
│   ├── ListingError                      a range cannot be listed
│   ├── TransferError                     a file cannot be copied whole
│   │   └── ChangedError                  it is not, or not any more, the file that was listed
│   ├── OutageError                       it is out of reach or busy; try again later
│   ├── AccessError             exit 77   the source refuses us: no token, an expired one, or a narrow one
│   └── FormatError                       a file is not in the schema
├── PluginError                 exit 70   a reader, simulator or workload raised something unexpected
├── DataError                   exit 65   files that crpipe wrote do not fit
│   ├── LedgerError                       events or items do not add up
│   ├── ShardError                        a shard is damaged, missing or of another campaign
│   ├── LayoutError                       a layout that cannot be stored, or the description of none
│   └── PackError                         a pack is cut, altered, or of another version, key or kind
├── TrainError                  exit 1
│   ├── CheckpointError         exit 65   a checkpoint or snapshot is refused
│   └── DivergenceError         exit 76   losses out of their band; a retry would diverge again
├── DeviceMemoryError           exit 1    the memory of a GPU is too small
├── UnseenError                 exit 74   a shard or checkpoint that a record names is not seen here yet
├── MachineError                exit 74   the machine failed, not the data; try again later
│   ├── HostMemoryError                   too little memory
│   └── DiskError                         a disk or a file server: no space, an error, no answer
│       └── PlaceError          exit 77   no permission, a name too long, a link: a person must change it
├── LeaseError                  exit 75   another live job holds the range; try again later
├── QueueError                  exit 75   a cluster does not answer; try again later
├── SetupError                  exit 78   `crpipe doctor` found what will stop a campaign
├── Interrupted                 exit 75   stopped by a signal after a snapshot; the same command resumes
│   └── SliceOver               exit 85   a slice of a pack is over; the same command goes on from its STATE
└── MissingExtra                exit 69   an optional library is not installed, or its version does not fit
"""

from __future__ import annotations

import builtins
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


class CrpipeError(Exception):
    """Base of all errors that a user can act on."""

    exit_code = 1


class ConfigError(CrpipeError):
    """A key or a value in the configuration is wrong."""

    exit_code = 2


class SourceError(CrpipeError):
    """The source does not hold what it should."""

    exit_code = 66


class ListingError(SourceError):
    """A range cannot be listed, or its listing cannot be trusted."""


class TransferError(SourceError):
    """A file cannot be copied whole."""


class ChangedError(TransferError):
    """A file is not the one that was listed, or changes while it is copied; never set aside for that."""


class OutageError(SourceError):
    """The source is out of reach or busy, or refuses a valid token: it may answer later."""


class AccessError(SourceError):
    """The source refuses us: no token, an expired one, or one whose scope is too narrow."""

    exit_code = 77


class FormatError(SourceError):
    """A file is not in the schema that its reader expects."""


class PluginError(CrpipeError):
    """Code named in the configuration (a reader, a simulator, a workload) raised something unexpected."""

    exit_code = 70


ForeignError = PluginError  # its name in journals that earlier versions wrote


class DataError(CrpipeError):
    """Files that crpipe wrote are damaged or do not fit together."""

    exit_code = 65


class LedgerError(DataError):
    """Events or items of a range do not add up."""


class ShardError(DataError):
    """A shard is damaged, missing, or belongs to another configuration."""


class LayoutError(DataError):
    """A layout cannot be stored, or a description is not that of a layout."""


class PackError(DataError):
    """A pack, or what came back for one, is not whole, or not what it has to be here.

    damaged: its bytes are not those that were written. foreign: another version of crpipe may take it.
    """

    damaged = False
    foreign = False


class TrainError(CrpipeError):
    """Training cannot start or go on."""


class CheckpointError(TrainError):
    """A checkpoint or snapshot is damaged or does not fit this run."""

    exit_code = 65


class UnseenError(ShardError, CheckpointError):
    """A manifest or checkpoint that a record names is not seen on this machine: late, or gone."""

    exit_code = 74


class DivergenceError(TrainError):
    """Losses left their band or stayed non-finite; a retry would end the same way."""

    exit_code = 76


class DeviceMemoryError(CrpipeError):
    """The memory of a GPU is too small for what it was asked to compute at once."""


class MachineError(CrpipeError):
    """A disk, a file server or the memory failed: nothing is wrong with the data, and it may pass."""

    exit_code = 74


class HostMemoryError(MachineError):
    """The memory of the machine, or of the job, is too small."""


class DiskError(MachineError):
    """A file cannot be read or written: no space, an error of the disk, no answer of its server."""


class PlaceError(DiskError):
    """A file or directory is not where or how it must be; only a person can change that."""

    exit_code = 77


class LeaseError(CrpipeError):
    """Another live job holds the range."""

    exit_code = 75


class QueueError(CrpipeError):
    """The queue of a cluster does not answer, or not in time."""

    exit_code = 75


class SetupError(CrpipeError):
    """Something about this machine or the configuration will stop a campaign."""

    exit_code = 78


class MissingExtra(CrpipeError):  # noqa: N818 - names what is missing
    """An optional library is not installed, or its version does not fit."""

    exit_code = 69


class Interrupted(CrpipeError):  # noqa: N818 - an interruption is not an error of anyone's
    """A signal stopped the job after a snapshot; the same command resumes."""

    exit_code = 75


class SliceOver(Interrupted):
    """A slice of a pack is over, and its STATE is written: nothing else ends with this code."""

    exit_code = 85


# What an outage of the source, of Slurm or of a disk looks like; everything else needs a person.
_RETRYABLE = (
    *(ListingError, TransferError, OutageError, MachineError, UnseenError, LeaseError, QueueError),
    Interrupted,
)
_LASTING = (ChangedError,)  # of these
_PERMANENT = (ConfigError, AccessError, PlaceError, DataError, DivergenceError, PluginError, MissingExtra)
_PASSING_OF_PYTHON = (OSError, MemoryError, KeyboardInterrupt, SystemExit)


def is_retryable(kind: str) -> bool:
    """Return whether waiting may repair an error of this class name; empty: a killed job."""
    error_type = globals().get(kind) or getattr(builtins, kind, None)
    if not (isinstance(error_type, type) and issubclass(error_type, BaseException)):
        return True
    if not issubclass(error_type, CrpipeError):
        return issubclass(error_type, _PASSING_OF_PYTHON)
    base = next((each for each in error_type.__mro__ if each in (*_RETRYABLE, *_LASTING, *_PERMANENT)), None)
    return base in _RETRYABLE


def code_of(kind: str) -> int:
    """Return the exit code of an error of this class name; 1 for one that is not crpipe's."""
    error_type = globals().get(kind)
    return error_type.exit_code if isinstance(error_type, type) and issubclass(error_type, CrpipeError) else 1


def exit_code_is_retryable(code: int) -> bool:
    """Return the same for the exit code of a command that names no error."""
    return code not in {each.exit_code for each in _PERMANENT}


# Optional libraries: import one at the moment it is needed, or name the extra that installs it.


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import a module of an optional library; raise MissingExtra with the install command if there is none.

    ``why`` completes "… is needed", for example "to read HDF5 files". An installed library that itself fails
    to import something raises its own ImportError.
    """
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise MissingExtra(
            f"{library} is needed {why} and is not installed; install it with pip install 'crpipe[{extra}]'"
        ) from error
