"""What pip leaves of a package that declares a workload."""


def declare(folder, short_name, value):
    """Write the record of an installed distribution, with an entry point of crpipe's workloads."""
    package = value.partition(":")[0].partition(".")[0]
    record = folder / f"{package}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[crpipe.workloads]\n{short_name} = {value}\n")
