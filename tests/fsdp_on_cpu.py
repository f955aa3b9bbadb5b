"""A script under FSDP on the CPU, where Accelerate leaves FSDP out: python fsdp_on_cpu.py SCRIPT [ARG ...].

All that is replaced is Accelerate's question whether there is an accelerator; sharding, training, saving and loading
are those of torch, Accelerate and the trainer.
"""

from __future__ import annotations

import runpy
import sys

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

initialise = AcceleratorState.__init__


def with_fsdp(self: AcceleratorState, *args: object, fsdp_plugin: object = None, **kwargs: object) -> None:
    initialise(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


AcceleratorState.__init__ = with_fsdp
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
