"""Plan a reassignment from measured load. The solve is numpy without Spark or network. Read `solver.py` first."""
