"""The Spark data source and jobs. Read `data_source.py` first."""
