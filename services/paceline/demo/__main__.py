"""``python -m paceline.demo``: what ``make run`` calls."""

import sys

from paceline.demo.run import main

sys.exit(main())
