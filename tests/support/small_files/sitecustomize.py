"""On PYTHONPATH: a split of small files uses as many processes as one of large files."""

from crpipe.split import split

split._WORKER_RAW = 1
