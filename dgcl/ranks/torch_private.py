"""The private names of torch in use, tried with torch 2.4 and 2.13. A public name takes the place of any that gets one.

What changes or belongs to torch's own objects is read where it is needed: ``forward_ad._current_level`` (forward-mode
derivatives, in the operators of autograd), ``ProcessGroup._allgather_base`` (sums on devices), ``._start_coalescing``,
``._end_coalescing`` (NCCL), ``Tensor._make_wrapper_subclass`` and an operator's ``_schema`` (rows of an offload),
``Tensor._backward_hooks`` (layers computed again), ``Tensor._indices`` (sparse graphs), ``_saved_indices`` and
``_saved_self_sym_sizes`` of a step of autograd (rows that a loss takes).
Called by `context`, `dgcl/rows/tensor`, `dgcl/offload/chunked_rows`, `dgcl/nn/losses` and others. Free to change while
only this module, `device_sums` and `dgcl/autograd/operators` have private names of torch, and torch has them
(`tests/dgcl/test_torch_private.py`).
"""

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as untransformed_tensors
from torch._ops import OperatorBase  # functions of torch.ops, as compiled code calls them
from torch.utils._python_dispatch import TorchDispatchMode  # sees each operator, as what a layer makes
from torch.utils._pytree import tree_iter, tree_map_only  # tensors in nested arguments

__all__ = ["OperatorBase", "TorchDispatchMode", "tree_iter", "tree_map_only", "untransformed_tensors"]

profiler_enabled = torch.autograd._profiler_enabled  # calls are named only for somebody who records them
below_autograd = torch._C._AutoDispatchBelowAutograd  # views made inside an operation may be changed in place
num_dispatch_modes = torch._C._len_torch_dispatch_stack  # a mode must see each call
num_function_modes = torch._C._len_torch_function_stack
functorch_level = torch._C._functorch.peek_interpreter_stack  # None outside of torch.func
current_graph_task = torch._C._current_graph_task_id  # -1 outside of a backward
disabled_torch_function = torch._C._disabled_torch_function_impl  # a subclass that intercepts operators alone
torch_function_off = torch._C.DisableTorchFunctionSubclass  # within it subclasses are not asked
torch_function_on = torch._C._EnableTorchFunction  # type: ignore[attr-defined]  # in the engine, which turns it off
run_backward = (
    torch.autograd.graph._engine_run_backward
)  # torch.autograd.grad would ask the inputs' classes again
tracing_state = torch._C._get_tracing_state  # None: torch.jit.trace records nothing
make_wrapper = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]  # a tensor of a shape, without storage
throw_on_data_pointer = torch._C._set_throw_on_mutable_data_ptr  # for a tensor without memory


def has_one_owner(tensor: torch.Tensor) -> bool:
    """Whether no other tensor has the memory of a tensor that owns some."""
    storage = tensor.untyped_storage()  # two users: the tensor, and this handle
    return tensor._base is None and torch._C._storage_Use_Count(storage._cdata) <= 2  # type: ignore[attr-defined]


def hooks_of(leaf: torch.Tensor) -> list[Any]:
    """The functions that see a leaf's gradient in a backward."""
    own: Any = leaf
    return [*(own._backward_hooks or {}).values(), *(own._post_accumulate_grad_hooks or {}).values()]


def default_store() -> Any:
    """The store of torch's default group."""
    return torch.distributed.distributed_c10d._get_default_store()


def process_groups() -> list[Any]:
    """Those of torch that live in this process."""
    return list(torch.distributed.distributed_c10d._world.pg_map)


def gloo_timed_out(text: str) -> bool:
    """Whether Gloo's text for an operation that ended is of a timeout: its errors have no kinds of their own."""
    return "imed out" in text


def set_timeout(group: Any, timeout: timedelta) -> None:
    """Of the operations of a group's backends; torch's own function knows none that TORCH_DISTRIBUTED_DEBUG wraps."""
    for device in group._device_types:
        backend = group._get_backend(device)
        getattr(backend, "wrapped_pg", backend)._set_default_timeout(timeout)


def import_compiler() -> None:
    """Operators of ``torch.library`` import it in their first call, for seconds, where peers would wait."""
    import_module("torch._dynamo")


def at_trace_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a compiler runs where it meets a call of it; ``torch.compiler`` would import the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def keep_order(operators: Iterable[Any]) -> None:
    """Let Inductor, where it is in use, keep calls of effectful operators in the order of the graph.

    Torch up to 2.13 notes it under names of buffers, and its scheduler looks under those of operations: without it each
    rank may order calls by the sizes of its own rows.
    """
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    for operator in operators if lowering and hasattr(torch.library, "EffectType") else ():
        if operator not in lowering.lowerings:
            lowering.lowerings[operator] = _in_order(operator, lowering)


def _in_order(operator: Any, lowering: Any) -> Callable[..., Any]:
    lower = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(*arguments: Any) -> Any:
        graph = lowering.V.graph
        first, earlier = len(graph.operations), [each.get_name() for each in graph.effectful_ops.values()]
        result = lower(*arguments)
        for operation in graph.operations[first:]:
            graph.additional_star_deps[operation.get_operation_name()].update(earlier)
        return result

    return lowered
