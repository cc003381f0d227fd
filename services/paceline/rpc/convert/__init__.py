"""Conversions between protobuf messages and `model`; one file for each kind of message.

``*_to_proto`` never fails. ``*_from_proto`` raises a typed error for invalid values in a *request*; it trusts the peer
that sent a *response* and does not check it.
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
