"""`python -m crpipe` is `crpipe`: what torchrun starts."""

import gc
import sys

_DISK = 74  # as crpipe.core.errors has it
_INTERRUPTED = 130  # as a shell reports a program that SIGINT ended


def main() -> None:
    """Run the command line; Ctrl-C while its libraries are imported ends it in silence."""
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
