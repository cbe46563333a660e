import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import DataError
from crpipe.split.staged import read_staged


@pytest.mark.parametrize("names", [["path", "size"], ["other"]])
def test_a_table_that_lacks_columns_is_damaged(tmp_path, names):
    path = tmp_path / "0000000-0000999.parquet"
    pq.write_table(pa.table({name: ["x"] for name in names}), path)
    with pytest.raises(DataError, match=r"0000000-0000999\.parquet: damaged .*delete it"):
        read_staged(path)


def test_a_missing_table_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match="run `crpipe stage 0000000-0000999` first"):
        read_staged(tmp_path / "0000000-0000999.parquet")
