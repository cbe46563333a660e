"""`python -m crpipe` is `crpipe`: what torchrun starts."""

import gc
import io
import os
import pwd
import sys

_DISK = 74  # as crpipe.core.errors has it
_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended


def open_streams() -> None:
    """Open what was closed of standard input, output and error: else a file gets its number, and its text."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - the last of the three
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open to the end, as the two below
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # PYTHONIOENCODING may lack the sign for half of a bar


def use_utf8() -> None:
    """Start this command again in Python's UTF-8 mode where the locale has another encoding.

    Configurations, pages and reports are in UTF-8 on every machine; latin-1 has no sign for half of a bar.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # of the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def name_user() -> None:
    """Set name and home of a user whom a container does not know: Snakemake and torch end without them."""
    if not {"LOGNAME", "USER"} & {*os.environ} or "HOME" not in os.environ:
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            os.environ.setdefault("LOGNAME", str(os.getuid()))
            os.environ.setdefault("HOME", "/")  # as container engines set it


def forget_ranks() -> None:
    """Remove what a site's scripts say of ranks: those of a training are torchrun's, which names its run."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)


def main() -> None:
    """Run the command line; Ctrl-C while its libraries are imported ends it in silence."""
    open_streams()
    use_utf8()
    name_user()
    forget_ranks()
    try:
        # Imported here: most of the time before the first line of output is spent on it.
        from crpipe.cli import importing  # noqa: PLC0415

        with importing():
            from crpipe.cli.app import main as run  # noqa: PLC0415
        run()
    except (OSError, MemoryError) as error:  # of an import: the disk that crpipe itself is on
        sys.stderr.write(
            f"crpipe: cannot read its own files: {error}; see whether the disk they are on "
            f"({sys.prefix}) is there, then run the same command again\n"
        )
        sys.exit(_DISK)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        # Everything is written: a last search for garbage in all modules takes most of a second after torch.
        gc.freeze()


if __name__ == "__main__":
    main()
