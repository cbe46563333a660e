"""Programs with the names of Slurm's, for what a real one does not do on request; a job of Snakemake."""

from types import SimpleNamespace

SCRIPT = "#!/bin/sh\n"


def put_programs(folder, monkeypatch, **programs):
    """Write shell scripts and make them the first of their names on the PATH; return their folder."""
    folder.mkdir()
    for name, lines in programs.items():
        path = folder / name
        path.write_text(SCRIPT + lines)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def job_of_snakemake(**changes):
    """A job as far as it is asked."""
    file = SimpleNamespace(is_storage=False, is_directory=False)
    about = {
        "is_group": lambda: False,
        "is_shell": True,
        "is_shadow": False,
        "rule": SimpleNamespace(resources={}),
        "resources": {"mem_mb": 1700, "gres": "gpu:a100:2"},
        "input": [file],
        "output": [file],
        "log": [file],
        "benchmark": "one.tsv",
        "threads": 2,
        "shellcmd": "exec crpipe train 7 --set 'a=b' > log 2>&1",
    }
    return SimpleNamespace(**(about | changes))
