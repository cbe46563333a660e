import sys

import pytest

from crpipe.cli.app import main


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Call the command line in an empty working directory: call(*words) -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    # A script belongs to no package, as the installed command: then its name is argv[0].
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["crpipe", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return (end.value.code, *capsys.readouterr())

    return typed
