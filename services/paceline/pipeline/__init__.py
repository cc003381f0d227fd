"""The Spark data source and jobs. Read `reader.py` first."""
