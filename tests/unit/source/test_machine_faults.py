"""A source file that this machine cannot read stops the range: it is not set aside."""

import pytest

from crpipe.campaign.raw_files import read_staged
from failing import crpipe, failing
from raw_files import NAME, campaign, keys, write_parquet


@pytest.mark.parametrize(("number", "code"), [(5, 74), (13, 77)])  # EIO, EACCES
def test_a_source_file_that_cannot_be_read_is_not_set_aside(tmp_path, number, code):
    folder = tmp_path / "source" / NAME
    folder.mkdir(parents=True)
    for at in range(6):
        write_parquet(folder / f"{at}.parquet", [1, 2, 3], seed=at)
    words = [*keys(tmp_path), f"source.uri={tmp_path}/source/{{range}}/*.parquet"]
    words += ["source.attempts=1", "source.on_bad_file=quarantine"]
    settings = [part for word in words for part in ("--set", word)]
    assert crpipe("list", NAME, *settings, cwd=tmp_path).returncode == 0
    env = failing(tmp_path, "open", number, f"source/{NAME}/3.parquet", nth=0)
    failed = crpipe("stage", NAME, *settings, cwd=tmp_path, env=env)
    assert failed.returncode == code, failed.stderr
    assert "Traceback" not in failed.stderr
    assert "3.parquet" in failed.stderr.splitlines()[-1]
    assert crpipe("stage", NAME, *settings, cwd=tmp_path).returncode == 0
    staged = read_staged(campaign(tmp_path).paths().staged(NAME))
    assert [file.state for file in staged] == ["staged"] * 6
