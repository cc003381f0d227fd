"""Plan a reassignment from measured load. The solver uses numpy without Spark or network. Read `solver.py` first."""
