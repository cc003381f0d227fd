"""Plan a reassignment from measured load; `paceline.planning` makes the plan. Read `job.py` first."""
