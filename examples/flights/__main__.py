"""``python -m examples.flights``: what ``make run`` calls."""

import sys

from examples.flights.run import main

sys.exit(main())
