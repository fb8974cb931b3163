"""Imported by the server that forks ranks: loads and links once what every rank would spend seconds on."""

import torch

from dgcl.ranks.context import context
from dgcl.ranks.control import SingleControl
from tests.support.plans import make_world
from tests.support.ranks import join

context.control = SingleControl()
_comm = join(make_world([(0, 0)], [0], 1).shares())
_comm.fold(_comm.expand(torch.zeros(1)))
_comm.close()
context.communicator = context.control = None
del _comm
