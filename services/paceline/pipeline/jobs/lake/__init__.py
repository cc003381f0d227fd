"""Tables of Parquet files whose commits carry the job's progress. No Spark. Read `table.py` first."""
