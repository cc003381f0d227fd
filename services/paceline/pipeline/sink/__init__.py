"""The sink: rows to record batches to partitions, at least once or exactly once. Read `writer.py` first."""
