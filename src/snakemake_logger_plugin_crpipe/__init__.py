"""The screen of `crpipe run` as a logger of Snakemake, which finds it by its name: `--logger crpipe`.

Every `snakemake` beside crpipe imports this module: crpipe itself is imported where the logger is used.
"""

from logging import LogRecord

from snakemake_interface_logger_plugins.base import LogHandlerBase


class LogHandler(LogHandlerBase):
    """Passes the records of Snakemake on, in the place of its own output."""

    writes_to_stream = has_filter = has_formatter = True
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        """Begin to show what happens."""
        from crpipe.cli.terminal import Terminal  # noqa: PLC0415
        from crpipe.workflow.monitor import RUN, Monitor  # noqa: PLC0415

        RUN.monitor = self._monitor = Monitor(Terminal(), RUN, dry_run=self.common_settings.dryrun)
        self._monitor.start()

    def emit(self, record: LogRecord) -> None:
        """Print what a person should see of a record."""
        self._monitor.receive(record)

    def close(self) -> None:
        """Print how the workflow ended."""
        self._monitor.close()
        super().close()
