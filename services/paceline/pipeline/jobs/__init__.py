"""Jobs over topics and the cluster: ``paceline pipeline NAME``. Read `run.py` first, then the folder of a job."""
