"""`make run`: real flights streamed through a cluster whose leader dies on the way, then read back with Spark.

Read `run.py` first; `story.py` pauses and kills, `flights.py` brings the data, `report.py` and `chart.py` tell the end.
"""
