"""Every conversion between protos and model, under one name; one file for each kind of message.

``*_to_proto`` never fails. ``*_from_proto`` of a *request* raises a typed error for invalid values;
``*_from_proto`` of an *answer* trusts the called peer and does not validate.
"""

from paceline.rpc.convert.common import *  # noqa: F403
from paceline.rpc.convert.control import *  # noqa: F403
from paceline.rpc.convert.digest import *  # noqa: F403
from paceline.rpc.convert.failures import *  # noqa: F403
from paceline.rpc.convert.fetch import *  # noqa: F403
from paceline.rpc.convert.log_dirs import *  # noqa: F403
from paceline.rpc.convert.offsets import *  # noqa: F403
from paceline.rpc.convert.partition_replicas import *  # noqa: F403
from paceline.rpc.convert.produce import *  # noqa: F403
from paceline.rpc.convert.replica import *  # noqa: F403
from paceline.rpc.convert.standby import *  # noqa: F403
