"""`make run`: stream real flights through a cluster, kill a leader meanwhile, and check the records with Spark.

Read `run.py` first; `story.py` pauses and kills brokers, `flights.py` reads the data, `report.py` and `page.py` write
the report.
"""
