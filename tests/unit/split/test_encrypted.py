"""Raw files with encryption are refused as such; pyarrow would end the whole process."""

import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.split.inspect import inspect_file
from encrypted import write_encrypted
from failing import crpipe
from named import READERS
from raw_files import NAME, campaign, keys, make_events, nested, raw_folder, split, write_staged

COLUMNS = ("muons.list.element.list.element", "primary.list.element", "primary_major_id")


@pytest.mark.parametrize("plaintext_footer", [True, False])
@pytest.mark.parametrize("column", COLUMNS)
def test_an_encrypted_file_is_named_in_inspect_and_split(tmp_path, column, plaintext_footer):
    config = campaign(tmp_path)
    table = nested(*make_events([3, 0, 2]))
    path = raw_folder(config) / "0001.parquet"
    write_encrypted(path, table, column, plaintext_footer=plaintext_footer)
    write_staged(config)
    with pytest.raises(FormatError, match=r"0001\.parquet: (this is an )?encrypted"):
        inspect_file(path, 3, ReaderChoice(READERS["bundles"]))
    with pytest.raises(FormatError, match=r"0001\.parquet: (this is an )?encrypted"):
        split(config)


def test_an_encrypted_file_is_named_in_plan(tmp_path):
    source = tmp_path / "source" / NAME
    source.mkdir(parents=True)
    table = nested(*make_events([3, 0, 2]))
    write_encrypted(source / "0.parquet", table, COLUMNS[0], plaintext_footer=True)
    words = [*keys(tmp_path), f"source.uri={tmp_path}/source/{{range}}/*.parquet"]
    found = crpipe("plan", *(part for word in words for part in ("--set", word)), cwd=tmp_path)
    assert found.returncode == 66, found.stderr
    assert "0.parquet: encrypted" in found.stderr + found.stdout
