from dgcl import bench as bench
from dgcl import frameworks as frameworks
from dgcl import graph as graph
from dgcl import nn as nn
from dgcl import planner as planner
from dgcl import topology as topology
from dgcl.api import collect as collect
from dgcl.api import current_communicator as current_communicator
from dgcl.api import dispatch_features as dispatch_features
from dgcl.api import graph_allgather as graph_allgather
from dgcl.api import graph_allgather_async as graph_allgather_async
from dgcl.api import init as init
from dgcl.build import build_comm_info as build_comm_info
from dgcl.build import load_comm_info as load_comm_info
from dgcl.communicator import Communicator as Communicator
from dgcl.errors import CommError as CommError
from dgcl.errors import CommTimeoutError as CommTimeoutError
from dgcl.errors import DisagreementError as DisagreementError
from dgcl.errors import InexactWarning as InexactWarning
from dgcl.errors import PeerLostError as PeerLostError
from dgcl.nn.inexact import check_model as check_model
from dgcl.offload.offload import Offload as Offload
from dgcl.options import PartitionOptions as PartitionOptions
from dgcl.options import ReplicaOptions as ReplicaOptions
from dgcl.planner import PlanOptions as PlanOptions
from dgcl.ranks.launcher import launch as launch

__version__: str
