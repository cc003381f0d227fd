"""Tables of Parquet files whose commits also store the job's offsets. No Spark. Read `table.py` first."""
