"""Copy topics into Delta tables or Parquet files, every record exactly once. Read `job.py` first."""
