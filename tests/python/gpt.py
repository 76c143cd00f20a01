"""A small GPT, and the usual training script around one, with all its options."""

import contextlib
import hashlib
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

VOCABULARY, CONTEXT = 13, 8


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split(width, 2))
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)).masked_fill(
            ~seen, float("-inf"))
        x = x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    """Its head and its token embedding are one parameter. Returns the loss."""

    def __init__(self, width=16, layers=3, heads=2, checkpointing=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight
        self.checkpointing = checkpointing

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def batches(seed):
    """(tokens, targets), again and again."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        text = torch.randint(VOCABULARY, (4, CONTEXT + 1), generator=generator)
        yield text[:, :-1], text[:, 1:]


def adamw(net):
    """As such scripts group the parameters: matrices decay, vectors don't."""
    own = [p for p in net.parameters() if p.requires_grad]
    return torch.optim.AdamW([
        {"params": [p for p in own if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in own if p.dim() < 2], "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95))


def digest(*modules):
    found = hashlib.sha256()
    for module in modules:
        for parameter in module.state_dict().values():
            found.update(parameter.detach().float().numpy().tobytes())
    return found.hexdigest()


def counts(optimizer):
    """How often each parameter was stepped, by the optimizer's own count."""
    return sorted({int(entry["step"]) for entry in optimizer.state_dict()["state"].values()})


def scaler_of(wanted):
    if hasattr(torch.amp, "GradScaler"):  # torch 1.x has none that works without a GPU
        return torch.amp.GradScaler("cpu", enabled=wanted, init_scale=2.0 ** 10)
    return torch.cuda.amp.GradScaler(enabled=False)


def thaw(net, optimizer, attachment, wrap):
    """Unfreezes in mid-training: DDP, and so the job, is made anew for the other parameters."""
    if attachment is not None:
        attachment.detach()
    frozen = [p for p in net.parameters() if not p.requires_grad]
    net.requires_grad_(True)
    optimizer.add_param_group({"params": frozen, "lr": optimizer.param_groups[0]["lr"],
                               "initial_lr": optimizer.param_groups[0]["initial_lr"]})
    return wrap(net, optimizer)


def train(wrap, seed, *, steps=6, autocast=False, scaler=False, checkpointing=False, accumulate=1,
          clip=None, ema=False, frozen=False, thaw_at=None, overflow_at=None, closure=False,
          looked_at=False, state=None):
    """wrap(net, optimizer): (what is called, DDP model, attachment or None). Returns what can be
    compared of a training of `steps` steps, and its checkpoint; `state`: one to go on from.
    thaw_at: the step before which all is unfrozen; overflow_at: the step that the scaler skips."""
    torch.manual_seed(1)
    net = GPT(checkpointing=checkpointing)
    if frozen:
        net.blocks[0].requires_grad_(False)
        net.wpe.requires_grad_(False)
    optimizer = adamw(net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    if state is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
    call, model, attachment = wrap(net, optimizer)
    average = AveragedModel(net, avg_fn=lambda a, b, _n: 0.9 * a + 0.1 * b) if ema else None
    scale = scaler_of(scaler)
    text = batches(seed)
    losses = []

    def backward(step):
        context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
        with context:
            loss = call(*next(text)) / accumulate
        too_large = step == overflow_at and scale.is_enabled()
        scale.scale(loss * float("inf") if too_large else loss).backward()
        losses.append(loss.item())
        return loss

    for step in range(steps):
        if step == thaw_at:
            call, model, attachment = thaw(net, optimizer, attachment, wrap)
        for micro in range(accumulate):
            if closure:
                break
            with model.no_sync() if micro + 1 < accumulate else contextlib.nullcontext():
                backward(step)
        if clip is not None:
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if closure:
            def whole():
                optimizer.zero_grad()
                return backward(step)  # noqa: B023 - called before the next one
            optimizer.step(whole)
        else:
            scale.step(optimizer)
        scale.update()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if ema:
            average.update_parameters(net)
        if looked_at and step % 2:
            with torch.no_grad():
                losses.append(model.eval()(*next(text)).item())
            model.train()
    if hasattr(attachment, "flush"):
        attachment.flush()
    found = dict(digest=digest(*(m for m in (net, average) if m is not None)), losses=losses,
                 counts=counts(optimizer), rates=schedule.get_last_lr(),
                 overlapped=getattr(attachment, "overlapped_steps", None),
                 reason=getattr(attachment, "reason", None))
    state = dict(net=net.state_dict(), optimizer=optimizer.state_dict(),
                 schedule=schedule.state_dict())
    if attachment is not None:
        attachment.detach()
    return found, state


# Every option of ordinary training, by itself and all together.
OPTIONS = {
    "plain": {}, "autocast": dict(autocast=True), "scaler": dict(scaler=True, autocast=True),
    "checkpointing": dict(checkpointing=True), "accumulation": dict(accumulate=3),
    "clipping": dict(clip=0.5), "ema": dict(ema=True), "frozen": dict(frozen=True),
    "thawed": dict(frozen=True, thaw_at=3), "skipped": dict(scaler=True, overflow_at=3),
    "closure": dict(closure=True), "evaluation": dict(looked_at=True),
    "all": dict(autocast=True, scaler=True, checkpointing=True, accumulate=2, clip=0.5, ema=True,
                frozen=True, looked_at=True)}
