"""Checks which models attach() accepts, with the reason and the remedy for the others."""

import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from sluice import errors

_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"


def refuse_other_models(model, call):
    """Raises InvalidArgument unless DDP's reducer averages the model's gradients. `call` is the
    call that the text names."""
    why = _why_not(model)
    if why is not None:
        raise errors.InvalidArgument(f"{call}) {why}")


def _why_not(model):
    kind = type(model).__name__
    if isinstance(model, DistributedDataParallel):
        if getattr(model, "_use_python_reducer", False):
            return ("cannot be used with torch._dynamo.config.optimize_ddp = 'python_reducer': "
                    "that averages gradients in compiled code, without a communication hook. Set "
                    "it to 'ddp_optimizer' before the model is wrapped")
        return None
    if kind == "OptimizedModule":  # torch.compile(model)
        inside = model._orig_mod
        if isinstance(inside, DistributedDataParallel):
            return ("needs the DistributedDataParallel model itself, and this is what "
                    "torch.compile() made of one: give it model._orig_mod, and go on training with "
                    "the compiled model")
        return ("needs a DistributedDataParallel model, and this is a compiled module without "
                f"one: wrap the compiled module, {_WRAP}")
    if _is_replicated(model):
        return ("cannot be used with torch's replicate(), whose reducer takes no communication "
                f"hook from others. Leave it out, {_WRAP}")
    if any(base.__name__ in ("FullyShardedDataParallel", "FSDPModule")
           for base in type(model).__mro__):
        return (f"cannot be used with a {kind}: it shards parameters, and reduce-scatters each "
                "shard's gradients; Sluice averages whole gradients on all ranks. Where the model "
                f"fits on each rank, leave out the sharding, {_WRAP}")
    return f"needs a DistributedDataParallel model, not a {kind}: wrap it first, {_WRAP}"


def _is_replicated(model):
    if any(base.__name__ == "ReplicateModule" for base in type(model).__mro__):
        return True
    composable = sys.modules.get("torch.distributed._composable.replicate")
    return composable is not None and isinstance(model, torch.nn.Module) and (
        composable.replicate.state(model) is not None)


def refuse_sparse(model, begin="", why=""):
    """Raises InvalidArgument, with these words before and amid, for sparse gradients."""
    for key, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(
                module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            raise errors.InvalidArgument(
                f"{begin}parameter '{key}.weight' has sparse gradients{why}: create the embedding "
                "with sparse=False")
