"""Settings: arguments first, the launcher's environment second."""

import ctypes
import dataclasses
import inspect
import re

import pytest

import sluice
from sluice import _abi, _library, _member, _policy, _settings, errors


def test_an_argument_wins_over_the_environment():
    assert _settings.integer("RANK", 3, {"RANK": "1"}) == 3
    assert _settings.integer("RANK", None, {"RANK": "1"}) == 1


def test_a_missing_rank_says_how_to_give_it():
    with pytest.raises(errors.InvalidArgument, match="rank=.*sluice launch.*torchrun"):
        _settings.integer("RANK", None, {})


def test_a_rank_that_is_no_number_is_shown():
    with pytest.raises(errors.InvalidArgument, match="RANK='two'"):
        _settings.integer("RANK", None, {"RANK": "two"})


def test_slurm_tells_the_rank_where_no_launcher_does():
    slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
    assert _settings.integer("RANK", None, slurm) == 5
    assert _settings.integer("WORLD_SIZE", None, {**slurm, "WORLD_SIZE": "2"}) == 2
    assert _settings.expand("{rank}-{local_rank}", 5, slurm) == "5-1"


def test_digits_say_the_rank_over_a_bcube_where_nothing_else_does():
    env = {"SLUICE_ADDRESS": "bcube://3,2?file=x", "SLUICE_BCUBE_DIGITS": "2,1"}
    assert _settings.rank(None, None, env) == 5
    assert _settings.rank(None, "bcube://3,2?digits=1,2&file=x", env) == 7
    assert _settings.rank(None, "bcube://2,3?file=x&digits=0,1,1", {}) == 6
    assert _settings.rank(4, None, env) == 4, "the library compares the two"
    assert _settings.rank(None, None, {**env, "RANK": "3"}) == 3
    assert _settings.rank(None, None, {**env, "SLURM_PROCID": "2"}) == 2
    with pytest.raises(errors.InvalidArgument, match="^RANK is not known"):
        _settings.rank(None, "udp://10.0.0.1", env)


def test_n_and_k_say_the_world_size_over_a_bcube_where_nothing_else_does():
    env = {"SLUICE_ADDRESS": "bcube://3,2"}
    assert _settings.world_size(None, None, env) == 9
    assert _settings.world_size(None, "bcube://2,3?file=x", env) == 8
    assert _settings.world_size(4, None, env) == 4, "the library compares the two"
    assert _settings.world_size(None, None, {**env, "WORLD_SIZE": "3"}) == 3
    assert _settings.world_size(None, None, {**env, "SLURM_NTASKS": "2"}) == 2
    with pytest.raises(errors.InvalidArgument, match="^WORLD_SIZE is not known"):
        _settings.world_size(None, "udp://10.0.0.1", env)
    for shape in ("2,11", "2,999999999", "33,2", "0,2"):
        with pytest.raises(errors.InvalidArgument, match=rf"n\^k of bcube://{shape}: .* to 1024"):
            _settings.world_size(None, f"bcube://{shape}", env)


@pytest.mark.parametrize("digits, words", [
    ("", "neither RANK nor .* digits are known: give rank=.* SLUICE_BCUBE_DIGITS"),
    ("2", "digits 2 of bcube://3,2: give 2, one a level"), ("2,1,0", "give 2, one a level"),
    ("2,3", "digits 2,3 of bcube://3,2: must be a whole number from 0 to 2"), ("x,1", "0 to 2")])
def test_digits_that_say_no_rank_are_refused_by_value(digits, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        _settings.rank(None, "bcube://3,2", {"SLUICE_BCUBE_DIGITS": digits})


def test_the_address_gets_the_rank_and_the_local_rank():
    env = {"SLUICE_ADDRESS": "vhost://10.0.0.1/run/{local_rank}-{rank}.sock", "LOCAL_RANK": "1"}
    assert _settings.address(None, 5, env) == "vhost://10.0.0.1/run/1-5.sock"


def test_a_missing_address_says_how_to_give_it():
    with pytest.raises(errors.InvalidArgument, match="SLUICE_ADDRESS=udp://"):
        _settings.address(None, 0, {})


def test_ranks_of_one_launch_agree_on_the_run_id_and_launches_differ():
    first = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}
    assert _settings.run_id(None, {**first, "RANK": "0"}) == _settings.run_id(
        None, {**first, "RANK": "1"})
    others = [{**first, "MASTER_PORT": "2"}, {**first, "TORCHELASTIC_RUN_ID": "7"},
              {**first, "TORCHELASTIC_RESTART_COUNT": "1"}, {**first, "SLURM_RESTART_COUNT": "1"},
              {**first, "SLURM_JOB_ID": "3"}, {**first, "SLUICE_RUN_ID": "x"}]
    assert len({_settings.run_id(None, env) for env in [first, *others]}) == 7


def test_what_a_launcher_starts_again_is_another_run_under_an_exported_name_too():
    envs = [{"SLUICE_RUN_ID": "x"}, {"SLUICE_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1"},
            {"SLUICE_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2"},
            {"SLUICE_RUN_ID": "x", "SLURM_RESTART_COUNT": "2"}]
    assert len({_settings.run_id(None, env) for env in envs}) == 4
    assert _settings.run_id(None, {**envs[0], "TORCHELASTIC_RESTART_COUNT": "0"}) == (
        _settings.run_id(None, envs[0]))
    assert _settings.run_id("given", envs[1]) == _settings.run_id("given", {})


def test_a_round_of_torchrun_has_one_run_id_on_nodes_that_count_restarts_differently():
    for named in ({}, {"SLUICE_RUN_ID": "x"}):
        def run_id(port, count):
            return _settings.run_id(None, {
                **named, "TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_ADDR": "a",  # noqa: B023
                "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": count})
        assert run_id("1", "0") == run_id("1", "1") == run_id("1", "2") != run_id("2", "1")


def test_a_numeric_run_id_is_taken_as_it_is_and_checked():
    assert _settings.run_id(12, {}) == 12
    for bad in (0, -1, 1 << 64):
        with pytest.raises(errors.InvalidArgument, match="2\\^64"):
            _settings.run_id(bad, {})


def test_disable_is_off_unless_set():
    assert not _settings.disabled({})
    assert not _settings.disabled({"SLUICE_DISABLE": "0"})
    assert _settings.disabled({"SLUICE_DISABLE": "1"})
    for text in ("false", "no", "yes"):
        with pytest.raises(errors.InvalidArgument, match=f"SLUICE_DISABLE='{text}'.* must be 1"):
            _settings.disabled({"SLUICE_DISABLE": text})


@pytest.mark.parametrize("name, value", [
    ("rank", -1), ("rank", 0.5), ("rank", "a"), ("world_size", 0), ("world_size", 1 << 33),
    ("mtu", -1), ("chunk_bytes", -64), ("join_timeout", -1), ("silence_timeout", 0),
    ("stall_report", "5"), ("weird", 1)])
@pytest.mark.usefixtures("library")
def test_an_option_with_a_wrong_value_is_refused_by_its_name_and_value(name, value):
    options = {"rank": 0, "world_size": 1, name: value}
    expected = "no option 'weird'" if name == "weird" else f"{name}={value!r}: must be"
    with pytest.raises(errors.InvalidArgument) as raised:
        sluice.Job([("w", 10, "float32")], "inproc://wrong", **options)
    assert expected in str(raised.value)


@pytest.mark.usefixtures("library")
def test_what_is_nearly_an_option_or_a_tensor_is_refused_with_the_right_form():
    with pytest.raises(errors.InvalidArgument, match="did you mean 'wire'"):
        sluice.Job([("w", 10, "float32")], "inproc://wrong", rank=0, world_size=1, wires="int8")
    for tensor in ("w", ("w",), ("w", -1, "float32")):
        with pytest.raises(errors.InvalidArgument, match="element count|-1 elements of tensor 'w'"):
            sluice.Job([tensor], "inproc://wrong", rank=0, world_size=1)


@pytest.mark.usefixtures("library")
def test_ranks_that_are_processes_are_refused_an_appliance_inside_one_of_them(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(errors.InvalidArgument, match="inproc://one is .* inside this process.*"
                       "2 processes, which cannot reach it: .* udp://"):
        sluice.Job([("w", 10, "float32")], "inproc://one")
    with sluice.Job([("w", 10, "float32")], "inproc://one", rank=0, world_size=1) as job:
        assert job.world_size == 1


@pytest.mark.usefixtures("library")
def test_sums_in_the_order_of_ranks_are_asked_for_with_1_or_not(monkeypatch):
    monkeypatch.setenv("SLUICE_REPRODUCIBLE", "yes")
    with pytest.raises(errors.InvalidArgument, match='SLUICE_REPRODUCIBLE is "yes"'):
        sluice.Job([("w", 10, "float32")], "inproc://wrong", rank=0, world_size=1)


def documented(kind):
    """The keywords at the margin of a docstring: "    mtu          of the path", "    a, b"."""
    return {name for words in re.findall(r"(?m)^    (\w+(?:, \w+)*)(?: |$)", kind.__doc__)
            for name in words.split(", ")}


def paths_of(struct, prefix=""):
    """The fields of sluice_options, as they are written in C."""
    for name, kind in struct._fields_:
        if issubclass(kind, ctypes.Structure):
            yield from paths_of(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_option_is_documented_where_it_is_given():
    assert set(sluice.Options.__dataclass_fields__) <= documented(sluice.Options)
    keywords = set(inspect.signature(sluice.Store.__init__).parameters) - {"self"}
    assert keywords <= documented(sluice.Store)


# What the package finds out or is called by, and no keyword of Options or Store gives as it is.
_FILLED = {"struct_size", "address", "local_address", "job_name", "secret", "run_id", "rank",
           "world_size"}


@pytest.mark.usefixtures("library")
def test_every_field_of_sluice_options_has_a_keyword(monkeypatch):
    options = {option.metadata["path"] for option in dataclasses.fields(sluice.Options)
               if option.metadata}
    store = {}
    monkeypatch.setattr(_member.Member, "__init__",
                        lambda _self, *_arguments, **fields: store.update(fields))
    monkeypatch.setattr(sluice.Store, "kept", False)
    sluice.Store([[("a", 1)]], "inproc://none")
    policy = {path for path in paths_of(_abi.Options) if path.startswith("policy.")}
    assert len(policy) == len(_policy.names(_library.load()))
    callbacks = {path for path in paths_of(_abi.Options) if path.startswith("callbacks.")}
    assert set(paths_of(_abi.Options)) == (
        options | {f"store.{name}" for name in store} | policy | callbacks | _FILLED)


def read_policy(policy, given, env, world_size=6):
    """The fields of sluice_policy_options that were set, in the words of the C interface."""
    library = _library.load()
    options = _abi.sized(_abi.Options)
    library.sluice_options_init(options)
    options.world_size = world_size
    fields = [name for name, _ in _abi.PolicyOptions._fields_]
    before = {name: getattr(options.policy, name) for name in fields}
    _policy.apply(library, options, {"policy": policy, **given}, env)
    return {name: getattr(options.policy, name) for name in fields
            if getattr(options.policy, name) != before[name]}


@pytest.mark.usefixtures("library")
def test_a_policy_comes_from_arguments_first_and_the_environment_second():
    env = {"SLUICE_POLICY": "saina", "SLUICE_K": "3", "SLUICE_SIGN_THRESHOLD": "0.45",
           "SLUICE_COUNT_THRESHOLD": "k", "SLUICE_SIGNS": "one-in-32", "SLUICE_LATE": "requeue"}
    assert read_policy(None, {}, env) == dict(
        kind=2, k=3, sign_threshold_permille=450, count_threshold=0, sign_stride=32, late=1)
    assert read_policy("fixed", {"k": 5, "late": "drop"}, {"SLUICE_K": "3"}) == dict(kind=1, k=5)


@pytest.mark.usefixtures("library")
def test_without_a_policy_the_appliance_decides():
    assert read_policy(None, {"k": None}, {}) == {}
    with pytest.raises(errors.InvalidArgument, match="k=2: .*without a policy"):
        read_policy(None, {"k": 2}, {})


@pytest.mark.usefixtures("library")
def test_the_options_of_a_policy_are_the_librarys():
    names = _policy.names(_library.load())
    assert names[0] == "policy" and set(names) == set(_policy.Policy._fields[:len(names)])
    assert set(names) <= set(sluice.Options.__dataclass_fields__)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("policy, given, text", [
    ("quickest", {}, "policy='quickest'.*\"sync\", \"fixed\", \"saina\", \"ramp\", \"goodput\""),
    ("fixed", {"k": -1}, "k=-1"), ("fixed", {"k": 2.5}, "k=2.5"), ("fixed", {"k": "x"}, "k='x'"),
    ("fixed", {"k": 2, "late": "maybe"}, "late='maybe'.*\"drop\", \"requeue\""),
    ("saina", {"signs": 32}, "signs=32.*\"all\", \"one-in-32\""),
    ("saina", {"sign_threshold": 50}, "sign_threshold=50.*0.0 to 1.0"),
    ("saina", {"sign_threshold": 0.3333}, "sign_threshold=0.3333.*in steps of 0.001"),
    ("saina", {"count_threshold": "n"}, "count_threshold='n'.*from 1 to 65535, or \"k\""),
    ("saina", {"round_steps": 0}, "round_steps=0.*from 1"),
    ("goodputt", {}, "policy='goodputt'.*did you mean 'goodput'"),
    ("fixed", {}, "policy='fixed': needs k.*SLUICE_K"), ("fixed", {"k": 0}, "k=0: .*from 1 to 6"),
    ("fixed", {"k": 7}, "k=7: .*from 1 to 6, the world size"),
    ("ramp", {}, "policy='ramp': needs.*planned_steps=.*SLUICE_PLANNED_STEPS"),
    ("ramp", {"planned_steps": 0}, "planned_steps=0: is needed by policy 'ramp'"),
    ("goodput", {"k": 3}, "k=3: is not used by policy 'goodput'.*'fixed', 'saina'"),
    ("fixed", {"k": 2, "round_steps": 9}, "round_steps=9: is not used by policy 'fixed'.*'saina'"),
    ("fixed", {"k": 2, "max_staleness": 3}, "max_staleness=3: needs late='requeue'")])
def test_options_that_make_no_sense_are_refused_by_name(policy, given, text):
    with pytest.raises(errors.InvalidArgument, match=text):
        read_policy(policy, given, {})


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("env, text", [
    ({"SLUICE_POLICY": "fixd"}, "SLUICE_POLICY='fixd' in the environment: .*did you mean 'fixed'"),
    ({"SLUICE_K": "2"}, "SLUICE_K='2' in the environment: .*without a policy"),
    ({"SLUICE_POLICY": "fixed", "SLUICE_K": "0"}, "SLUICE_K='0' in the environment: .*from 1")])
def test_a_bad_value_from_the_environment_is_named_as_its_variable(env, text):
    with pytest.raises(errors.InvalidArgument, match=text):
        read_policy(None, {}, env)


def test_numbers_of_pruning_come_from_arguments_and_environment():
    env = {"SLUICE_PRUNE_FRACTION": "0.1", "SLUICE_PRUNE_WARMUP": "x"}
    assert _policy.number("prune_fraction", None, float, 0.01, env) == 0.1
    assert _policy.number("prune_fraction", 0.5, float, 0.01, env) == 0.5
    assert _policy.number("prune_sigmas", None, float, 3.0, env) == 3.0
    with pytest.raises(errors.InvalidArgument, match="SLUICE_PRUNE_WARMUP='x' in the environment"):
        _policy.number("prune_warmup", None, int, 0, env)
    with pytest.raises(errors.InvalidArgument, match="prune_warmup=1.5: must be a whole number"):
        _policy.number("prune_warmup", 1.5, int, 0, env)
    with pytest.raises(errors.InvalidArgument, match="SLUICE_PRUNE='stat'.*did you mean 'static'"):
        _policy.choice("prune", None, _abi.PRUNE_RULE, {"SLUICE_PRUNE": "stat"})
