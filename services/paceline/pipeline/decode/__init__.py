"""Record batches to Arrow columns with numpy: no Spark and no network. Read `records.py` first."""
