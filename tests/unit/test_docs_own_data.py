"""The files that docs/own-data.md writes by hand are read by the readers that it names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crpipe.campaign.declarations import init_configs
from crpipe.campaign.readers import ReaderChoice
from crpipe.setup.first_look import fitting_plugins

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = {
    "mine.parquet": ("crpipe.workloads.muons.reading.parquet:Bundles", (2, 2)),
    "batch_1.parquet": ("crpipe.workloads.direction.reading.kaggle:KaggleFiles", (1, 3)),
}


@pytest.mark.parametrize(("block", "name"), list(zip(BLOCKS, FILES, strict=True)), ids=list(FILES))
def test_a_file_written_by_hand_is_read_as_the_page_says(tmp_path, block, name):
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)
    included = {workload: config.readers for workload, config in init_configs().items()}
    (plugins,) = fitting_plugins([tmp_path / name], included)
    reader, totals = FILES[name]
    assert plugins.reader == reader
    tables = {key: Path(path) for key, path in plugins.tables.items()}
    opened = ReaderChoice(reader, {}, tables).open()
    assert opened.totals(tmp_path / name) == totals
    assert sum(len(block.items) for block in opened.rows(tmp_path / name)) == totals[1]
    assert reader in PAGE
