from dgcl import frameworks as frameworks
from dgcl import graph as graph
from dgcl import nn as nn
from dgcl import planner as planner
from dgcl import topology as topology
from dgcl.build import build_comm_info as build_comm_info
from dgcl.communicator import Communicator as Communicator
from dgcl.errors import CommError as CommError
from dgcl.errors import CommTimeoutError as CommTimeoutError
from dgcl.errors import DisagreementError as DisagreementError
from dgcl.errors import PeerLostError as PeerLostError
from dgcl.launcher import launch as launch
from dgcl.part_files import load_comm_info as load_comm_info
from dgcl.verbs import collect as collect
from dgcl.verbs import current_communicator as current_communicator
from dgcl.verbs import dispatch_features as dispatch_features
from dgcl.verbs import graph_allgather as graph_allgather
from dgcl.verbs import graph_allgather_async as graph_allgather_async
from dgcl.verbs import init as init

__version__: str
