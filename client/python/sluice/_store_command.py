"""`python3 -m sluice store save|load`: a parameter store without workers, into a file and back.

An appliance keeps a store that has no workers any more for limits.store_keep_s. `save` takes its
place among the next ones, reads all layers into FILE and leaves; `load` founds a store as FILE says
and leaves it, kept, for the workers to come. While workers train they hold all ranks: then one of
them calls save() of its Store or StaleSynchronous.

Neither knows the model: FILE says it, and for `save` an older file of the store, or what
Store.describe() has given as JSON.
"""

import contextlib
import secrets
import sys
import threading

from sluice import _store_file, errors
from sluice.store import Store



def _split(target):
    """('udp://HOST:PORT', 'JOB'); an address of another kind may have slashes of its own."""
    address, slash, job = target.rpartition("/")
    if not slash or not job or address.endswith("/"):
        raise errors.InvalidArgument(f"{target!r} names no job: give ADDRESS/JOB, as "
                                     "udp://10.0.0.1:7700/default")
    return address, job


def _open(address, job, about, rank, run_id, secret, keep):
    options = {name: about[name] for name in _store_file.OPTIONS if name in about}
    return Store(about["layers"], address, job=job, rank=rank, world_size=about["world_size"],
                 ordinal=about.get("ordinal", 0), run_id=run_id, secret=secret, keep=keep,
                 **options)


def save(target, path, like, secret=None, run_id=None):
    """Writes the store at ADDRESS/JOB, which has no workers, to `path`. Returns its iterations."""
    address, job = _split(target)
    _store_file.check_name(path)
    about, _ = _store_file.read(like, with_values=False)
    with _open(address, job, about, 0, run_id, secret, "take") as store:
        return store.save(path)


def load(target, path, secret=None, run_id=None, world_size=None):
    """Founds the store of `path` at ADDRESS/JOB and leaves it there, for `world_size` workers,
    default as many as it had. Returns what the file says of it."""
    address, job = _split(target)
    about, arrays = _store_file.read(path)
    about["world_size"] = world_size or about["world_size"]
    run_id = run_id or secrets.randbits(63) + 1
    failures = []

    def member(rank):
        try:
            with _open(address, job, about, rank, run_id, secret, True) as store:
                if store.kept:
                    raise errors.Refused(
                        f"{target}: a store is kept there already, and initial values would be "
                        "ignored: take another job name, or wait for limits.store_keep_s")
                if rank == 0:
                    for layer, tensors in enumerate(about["layers"]):
                        store.initialise(layer, [arrays[name] for name, _ in tensors])
                    for layer in range(store.layer_count):
                        store.wait_push(layer)
                store.barrier()  # nobody leaves before all values are there
        except errors.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(about["world_size"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return about


def add_arguments(parser):
    commands = parser.add_subparsers(dest="what", required=True, metavar="save|load")
    for name, text in (("save", "read a store without workers into FILE"),
                       ("load", "found a store with the values of FILE")):
        command = commands.add_parser(name, help=text)
        command.add_argument("target", metavar="ADDRESS/JOB",
                             help="as udp://10.0.0.1:7700/default")
        command.add_argument("file", metavar="FILE", help=".safetensors, or .npz")
        command.add_argument("--secret", help="the appliance's; default SLUICE_SECRET")
        if name == "load":
            command.add_argument("--workers", type=int, metavar="N",
                                 help="that are to come; default as many as the store had")
        else:
            command.add_argument("--like", metavar="LAYOUT", required=True,
                                 help="an older file of the store, or Store.describe() as .json")


def run(options):
    try:
        with contextlib.suppress(KeyboardInterrupt):
            if options.what == "save":
                iterations = save(options.target, options.file, options.like, options.secret)
                print(f"{options.file}: {options.target} up to iteration {iterations}")
            else:
                about = load(options.target, options.file, options.secret,
                             world_size=options.workers)
                kind = " ".join(f"{name}={about[name]!r}" for name in ("bound", "update")
                                if name in about)
                print(f"{options.target}: {len(about['layers'])} layers of {options.file}, kept "
                      f"for {about['world_size']} workers with {kind} and the file's other "
                      "options. Workers with others are refused")
            return 0
        return 130
    except (errors.Error, OSError) as error:
        print(f"sluice store {options.what}: {error}", file=sys.stderr)
        return 1
