"""Every conversion between protos and model, under one name; the themes live in ``convert_*.py``.

``*_to_proto`` never fails. ``*_from_proto`` of a *request* raises a typed error for what no caller of good will sends;
``*_from_proto`` of an *answer* trusts the peer that was called and takes what it finds.
"""

from paceline.rpc.convert_client import *  # noqa: F403
from paceline.rpc.convert_common import *  # noqa: F403
from paceline.rpc.convert_control import *  # noqa: F403
from paceline.rpc.convert_log_dirs import *  # noqa: F403
from paceline.rpc.convert_replica import *  # noqa: F403
from paceline.rpc.convert_standby import *  # noqa: F403
