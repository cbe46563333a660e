"""Parquet files with encryption, as pyarrow writes them."""

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class _PlainKeys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return key

    def unwrap_key(self, key, _):
        return key


def write_encrypted(path, table, column, *, plaintext_footer):
    """Write a table, one column of which (a leaf, by its path) is encrypted."""
    factory = pe.CryptoFactory(_PlainKeys)
    keys = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": [column]}, plaintext_footer=plaintext_footer
    )
    chosen = factory.file_encryption_properties(pe.KmsConnectionConfig(), keys)
    with pq.ParquetWriter(path, table.schema, encryption_properties=chosen) as writer:
        writer.write_table(table)
    return path
