"""Znodes as Kafka writes them: paths, JSON bodies, registrations and partition states. Pure functions.

Read `paths.py` first, then `states.py`. Their public names can be imported from this package.
"""

from paceline.coordination.znodes.acls import *  # noqa: F403
from paceline.coordination.znodes.paths import *  # noqa: F403
from paceline.coordination.znodes.quotas import *  # noqa: F403
from paceline.coordination.znodes.registrations import *  # noqa: F403
from paceline.coordination.znodes.states import *  # noqa: F403
