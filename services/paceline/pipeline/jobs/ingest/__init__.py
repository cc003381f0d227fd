"""Copy topics into Parquet or Delta tables, every record exactly once. Read `job.py` first."""
