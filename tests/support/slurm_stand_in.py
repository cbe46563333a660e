"""Programs with the names of Slurm's, for what a real Slurm does not do on request."""

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
