"""``python -m examples.flights``, the command of ``make run``."""

import sys

from examples.flights.run import main

sys.exit(main())
