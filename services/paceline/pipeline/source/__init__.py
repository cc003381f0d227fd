"""The readers of the data source: options, planning, and reading of offset ranges. Read `reader.py` first."""
