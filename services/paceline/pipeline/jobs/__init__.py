"""Jobs over topics and over the cluster: ``paceline pipeline NAME``. Read `run.py` first, then one job's folder."""
