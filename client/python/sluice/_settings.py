"""What a job needs to know, from arguments first and the launcher's environment second.

| variable              | meaning |
| --------------------- | ------- |
| SLUICE_ADDRESS        | the appliance; '{rank}' and '{local_rank}' are replaced |
| SLUICE_LOCAL_ADDRESS  | source IP address, likewise |
| SLUICE_BCUBE_FILE, ...| a place in bcube://n,k, by BCUBE.md; read by the library itself |
| SLUICE_JOB            | job name, default 'default' |
| SLUICE_SECRET         | the appliance's secret |
| SLUICE_ELASTIC_RANKS  | the most processes at a time of elastic process groups (64), the same  |
|                       | in all of them                                                       |
| SLUICE_MTU            | of the path to the appliance, bytes of an IP packet (1500) |
| SLUICE_RUN_ID         | name of this launch, the same on every rank and new for every launch |
|                       | (what torchrun and SLURM say of restarts is added to it); not needed |
|                       | where attach() has a process group of all ranks |
| SLUICE_POLICY         | how k is chosen, default as the appliance says: sync, fixed, saina, ... |
| SLUICE_K, ...         | as the arguments of sluice.Job; need SLUICE_POLICY or policy=...; also |
|                       | SLUICE_LATE, SLUICE_SIGN_THRESHOLD, SLUICE_COUNT_THRESHOLD, |
|                       | SLUICE_SIGNS, SLUICE_ROUND_STEPS, SLUICE_PLANNED_STEPS, |
|                       | SLUICE_MAX_STALENESS |
| SLUICE_SCHEDULE       | which packet leaves next: strict (default), credit, prophet, fifo |
| SLUICE_UNIT_BYTES, SLUICE_CREDIT_BYTES | the sizes of credit, as the arguments of sluice.Job |
| SLUICE_WIRE           | how float32 travels: float32 (default), float16, bfloat16, int8 |
| SLUICE_PRUNE, ...     | which elements leave: off (default), static, sampled, sigma, ...; also |
|                       | SLUICE_PRUNE_FRACTION, SLUICE_PRUNE_SIGMAS, SLUICE_PRUNE_WARMUP, |
|                       | SLUICE_PRUNE_MIN_ELEMS, SLUICE_PRUNE_MOMENTUM, as the arguments of |
|                       | sluice.Job |
| SLUICE_MEMORY         | how gradients leave a GPU: device (default: the best), pinned, ... |
| SLUICE_TRACE          | folder for a Chrome trace of each rank; read by the library itself |
| SLUICE_REPRODUCIBLE   | 1: sums in the order of ranks; read by the library itself |
| SLUICE_DISABLE        | 1: sluice.torch.attach() does nothing |
| SLUICE_COLLECTIVES    | of the backend 'sluice': auto (default); gloo: over Gloo, as it does |
|                       | under SLUICE_DISABLE=1 too; box: what the box does not do is refused |
| SLUICE_STATS          | file for the job's counters (JSON) when it ends; '{rank}' is replaced |
| SLUICE_METRICS        | HOST:PORT of this worker's page of metrics, for `top` and Prometheus; |
|                       | LOCAL_RANK is added to the port |
| RANK, WORLD_SIZE, ... | as torchrun and `python3 -m sluice launch` set them; else SLURM's |
"""

import hashlib
import os
import re
import secrets

from sluice import errors

DEFAULT_JOB = "default"
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MOST_RANKS = 1024
_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def run_id_number(text):
    """The 64-bit run id for a name: equal names, equal ids. Never 0."""
    digest = hashlib.blake2b(str(text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def run_id(given=None, env=os.environ):
    """`given` (a number, or a name to hash), else what the launcher says about this run.

    torchrun's own id is the word 'none' unless --rdzv-id is given, so the rendezvous address goes
    into the hash with it. What a launcher starts once more is another run, also under a name from
    outside. Where torchrun's agents share no store they draw a port for each round, which all ranks
    see; their counts of restarts differ from node to node. Where they do, see _elastic.
    """
    if isinstance(given, int):
        if not 0 < given < 1 << 64:
            raise errors.InvalidArgument(f"run_id={given}: must be 1 to 2^64 - 1")
        return given
    if given:
        return run_id_number(given)
    named = env.get("SLUICE_RUN_ID")
    rounds = {key: env.get(key, "") for key in ("MASTER_ADDR", "MASTER_PORT")}
    parts = [named] if named else [env.get(key, "") for key in (
        "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")] + list(rounds.values())
    again = {key: env[key] for key in _RESTARTS if env.get(key, "0") != "0"}
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        again = {**again, **rounds}
        again.pop("TORCHELASTIC_RESTART_COUNT", None)
    parts += [f"{key}={value}" for key, value in again.items()]
    return run_id_number("|".join(parts))


def drawn_run_id():
    return secrets.randbits(63) + 1


def whole(what, given, least=0, most=0xFFFF_FFFF):
    """`given` as an integer; `what` says in the error where it stands."""
    try:
        number = int(given)
        if number == float(given) and least <= number <= most:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise errors.InvalidArgument(f"{what}: must be a whole number from {least} to {most}")


def integer(name, given, env=os.environ, default=None, least=0):
    """An integer from an argument or the environment; InvalidArgument says how to give it."""
    if given is not None:
        return whole(f"{name.lower()}={given!r}", given, least)
    text = env.get(name, env.get(_SLURM.get(name, name)))
    if text is None:
        if default is not None:
            return default
        raise errors.InvalidArgument(
            f"{name} is not known: give {name.lower()}=..., or start the script with "
            f"'python3 -m sluice launch', torchrun or srun, which set {name}")
    return whole(f"{name}={text!r} in the environment", text, least)


def _cube_unless_given(name, given, at, env):
    """The match of a BCube's address, which says what `name` is where nothing else does, or None.
    """
    if given is not None or name in env or _SLURM[name] in env:
        return None
    return re.match(r"bcube://(\d+),(\d+)(?:\?(?:.*&)?digits=([^&]*))?",
                    at or env.get("SLUICE_ADDRESS", ""))


def rank(given, at, env=os.environ):
    """This worker's, which its digits say too where it has the address `at`, a BCube's."""
    cube = _cube_unless_given("RANK", given, at, env)
    if not cube:
        return integer("RANK", given, env)
    text, digits = cube.string, cube[3] or env.get("SLUICE_BCUBE_DIGITS")
    if not digits:
        raise errors.InvalidArgument(
            "neither RANK nor this worker's digits are known: give rank=..., start the script with "
            "'python3 -m sluice launch', torchrun or srun, which set RANK, or say its place at "
            f"level 0, 1, ... of {text}, digits=... in it or SLUICE_BCUBE_DIGITS")
    ports, levels = int(cube[1]), int(cube[2])
    found = [whole(f"digits {digits} of {text}", digit, 0, ports - 1)
             for digit in digits.split(",")]
    if len(found) != levels:
        raise errors.InvalidArgument(f"digits {digits} of {text}: give {levels}, one a level")
    return sum(digit * ports ** level for level, digit in enumerate(found))


def world_size(given, at, env=os.environ):
    """The job's, which n and k say too where a worker has the address `at`, a BCube's."""
    cube = _cube_unless_given("WORLD_SIZE", given, at, env)
    if not cube:
        return integer("WORLD_SIZE", given, env, least=1)
    # Of 11 levels 2 ports each are too many already.
    return whole(f"n^k of {cube.string}", int(cube[1]) ** min(int(cube[2]), 11), 1, _MOST_RANKS)


def expand(text, rank, env=os.environ):
    """Replaces '{rank}' and '{local_rank}'."""
    local = env.get("LOCAL_RANK", env.get(_SLURM["LOCAL_RANK"], str(rank)))
    return text.replace("{rank}", str(rank)).replace("{local_rank}", local)


def address(given, rank, env=os.environ):
    """The appliance's address for this rank; InvalidArgument when none is given."""
    text = given or env.get("SLUICE_ADDRESS")
    if not text:
        raise errors.InvalidArgument(
            "the appliance's address is not known: give address=\"udp://HOST\" or set "
            "SLUICE_ADDRESS, for example SLUICE_ADDRESS=udp://10.77.0.1")
    return expand(text, rank, env)


def check_inproc(address, count, said_by):
    """Refuses an appliance inside this process to ranks that are processes of their own."""
    if count > 1 and address.startswith("inproc://"):
        raise errors.InvalidArgument(
            f"{address} is an appliance inside this process, but {said_by} says that there are "
            f"{count} processes, which cannot reach it: give the address of a running sluiced, "
            "udp://HOST")


def local_address(given, rank, env=os.environ):
    text = given or env.get("SLUICE_LOCAL_ADDRESS")
    return expand(text, rank, env) if text else None


def job_name(given, env=os.environ):
    return given or env.get("SLUICE_JOB") or DEFAULT_JOB


def is_job_named(given, env=os.environ):
    return bool(given or env.get("SLUICE_JOB"))


def job_label(name, ordinal):
    """Of metrics, as the appliance has it: of no other name and ordinal."""
    return f"{name}/{ordinal}" if ordinal or re.search(r"/[0-9]+$", name) else name


def secret(given, env=os.environ):
    return env.get("SLUICE_SECRET") if given is None else given


def disabled(env=os.environ):
    text = env.get("SLUICE_DISABLE", "")
    if text not in ("", "0", "1"):
        raise errors.InvalidArgument(
            f"SLUICE_DISABLE={text!r} in the environment: must be 1, to train without Sluice, or 0")
    return text == "1"


def collectives(env=os.environ):
    """Which way the operations of the backend 'sluice' go: 'auto', 'box' or 'gloo'."""
    text = env.get("SLUICE_COLLECTIVES") or "auto"
    if text not in ("auto", "box", "gloo"):
        raise errors.InvalidArgument(
            f"SLUICE_COLLECTIVES={text!r} in the environment: must be 'box', which refuses what "
            "the box does not do, 'gloo', for everything over Gloo, or 'auto'")
    return "gloo" if disabled(env) else text


def metrics(env=os.environ):
    """(host, port) of this process's page of metrics; None if it shall have none."""
    text = env.get("SLUICE_METRICS")
    if not text:
        return None
    found = re.fullmatch(r"(\[.+\]|[^:\[\]]+):(\d+)", text)
    local = integer("LOCAL_RANK", None, env, default=0)
    if not found or not 0 < int(found[2]) <= 65535 - local:
        raise errors.InvalidArgument(
            f"SLUICE_METRICS={text!r} in the environment: must be HOST:PORT, an address of this "
            f"machine and a port from 1 to {65535 - local}, for example 0.0.0.0:9600")
    return found[1].strip("[]"), int(found[2]) + local


def stats_file(rank, env=os.environ):
    text = env.get("SLUICE_STATS")
    return expand(text, rank, env) if text else None
