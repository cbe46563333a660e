import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import DataError
from crpipe.core.raw_files import read_manifest


@pytest.mark.parametrize("names", [["path", "uri"], ["other"]])
def test_a_manifest_that_lacks_columns_is_damaged(tmp_path, names):
    path = tmp_path / "0000000-0000999.parquet"
    pq.write_table(pa.table({name: ["x"] for name in names}), path)
    with pytest.raises(DataError, match=r"0000000-0000999\.parquet: damaged .*delete it"):
        read_manifest(path)
