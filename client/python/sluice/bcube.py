"""`python3 -m sluice bcube plan`: the addresses of a BCube, its appliances' settings, a drawing.

BCube(n, k) has n^k servers with k ports and k levels of n^(k-1) switches with n ports. It writes
cube.toml, which every worker's address names (`bcube://n,k?file=cube.toml`), and, where the
switches sum, a configuration for each of them. In mode plain the addresses are the workers' own,
one at each level, and the switches are ordinary ones.
"""

import ipaddress
import re
import string
from pathlib import Path
from typing import NamedTuple, Optional

from sluice import errors

MODES = ("aggregated", "plain")
PATTERNS = {"aggregated": "udp://10.{level}.{switch}.1:7700",
             "plain": "udp://10.{level}.{switch}.{host}:7700"}
_MAY_HOLD = {"aggregated": ("level", "switch", "network"),
             "plain": ("level", "server", "switch", "host", "network")}
_ALWAYS_FITS = {"aggregated": "of numbers, udp://10.{network}.1:7700",
                "plain": "of names, udp://{level}-{server}.cube:7700"}
_FIRST_HOST = 10  # of a switch's servers, whose digits start at 0
_APPLIANCE_PORTS = 32  # at most: config/config.h
_LEG = re.compile(r"(.+)\.(?:t(\d+)\.s(\d+)\.(up|turn|down)|(meeting)|(survey|vote|spare)\.(\d+))")
_LAST_UDP_PORT = 65519  # as client/address.cc and config/appliance.toml have it


class Cube:
    """The same numbers as client/bcube/topology.h."""

    def __init__(self, ports, levels):
        if ports < 2 or levels < 1 or ports ** levels > 1024:
            raise errors.InvalidArgument(
                f"bcube({ports},{levels}): a switch has 2 ports or more, there is 1 level or more, "
                f"and 1,024 servers at most")
        self.ports, self.levels = ports, levels
        self.servers, self.switches = ports ** levels, ports ** (levels - 1)

    def digits(self, server):
        """From level 0 on."""
        return [server // self.ports ** level % self.ports for level in range(self.levels)]

    def switch_of(self, server, level):
        step = self.ports ** level
        return server // (step * self.ports) * step + server % step

    def detour(self, server, level):
        """When the server's switch of a level is lost: the level and the neighbour there by whose
        way it reaches the switch that stands in, and that switch. None with one level."""
        if self.levels == 1:
            return None
        other = (level + 1) % self.levels
        step = self.ports ** other
        digit = server // step % self.ports
        neighbour = server + ((digit + 1) % self.ports - digit) * step
        return other, neighbour, self.switch_of(neighbour, level)

    def ways_back(self, server):
        """Where switches only forward, a server that stands in answers by way of the neighbours who
        brought the questions: each neighbour's level and number, and the level and the switch there
        of those who ask."""
        found = []
        for level in range(self.levels if self.levels > 1 else 0):
            other = (level + 1) % self.levels
            for neighbour in self.servers_of(level, self.switch_of(server, level)):
                if neighbour != server:
                    found.append((level, neighbour, other, self.switch_of(neighbour, other)))
        return found

    def servers_of(self, level, switch):
        return [server for server in range(self.servers)
                if self.switch_of(server, level) == switch]


class Leg(NamedTuple):
    """What a BCube's job at a switch does, by its name: str() makes the name, of() reads it. The
    library makes the same ones in client/bcube/relay_legs.cc, where switches sum."""
    job: str  # the BCube's
    role: str  # of a thread at a stage: up, turn, down; else meeting, survey, vote, spare
    thread: Optional[int] = None
    stage: Optional[int] = None
    switch: Optional[int] = None  # for which this one stands in: of survey, vote, spare

    def __str__(self):
        if self.thread is not None:
            return f"{self.job}.t{self.thread}.s{self.stage}.{self.role}"
        return f"{self.job}.{self.role}" + ("" if self.switch is None else f".{self.switch}")

    @staticmethod
    def of(name):
        """The Leg that has this name; None: it is not named like one."""
        found = _LEG.fullmatch(name)
        if found is None:
            return None
        job, thread, stage, way, meeting, spare, switch = found.groups()
        return Leg(job, way or meeting or spare,
                   *(number and int(number) for number in (thread, stage, switch)))


def _out_of_range(address):
    """What is greater than an IPv4 address or a port may hold; empty: nothing."""
    found = re.fullmatch(r"udp://(\d+(?:\.\d+){3}|[^:\[\]]+|\[.*\])(?::(\d+))?/?", address)
    if not found:
        return ""
    host, port = found[1], int(found[2] or 7700)
    if not 0 < port <= _LAST_UDP_PORT:
        return f"ports are 1 to {_LAST_UDP_PORT}, not {port}"
    numbers = host.split(".") if re.fullmatch(r"\d+(\.\d+){3}", host) else []
    return next((f"{number} is above 255" for number in numbers if int(number) > 255), "")


def _host_of(address):
    return re.fullmatch(r"udp://(.*?)(?::\d+)?/?", address)[1]


def _unfit_for_appliance(address):
    """Why `sluiced --check-config` would refuse it with /24; empty: it would not."""
    host = _host_of(address)
    try:
        own = ipaddress.IPv4Address(host)
    except ValueError:
        return ("its appliance's configuration needs an IPv4 address in numbers, without leading "
                f"zeros, not {host}")
    if own.packed[0] in (0, 127) or own.packed[0] >= 224 or own.packed[3] in (0, 255):
        return f"{host}/24 is no host's address for its appliance"
    return ""


def _check_fields(option, pattern, may_hold, of=""):
    """That it is a format of these names alone; returns those that it has."""
    holds = f"{of}it may hold " + ", ".join(f"{{{name}}}" for name in may_hold)
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
        if named <= set(may_hold):
            pattern.format(**{name: "0.0" if name == "network" else 0 for name in may_hold})
            return named
    except ValueError as error:
        raise errors.InvalidArgument(f"{option} {pattern}: {error}; {holds}") from None
    raise errors.InvalidArgument(f"{option} {pattern}: {holds}, not "
                                 f"{', '.join(sorted(named - set(may_hold)))}")


def _is_configured(mode, pattern):
    """Whether the plan has a configuration for each switch."""
    return mode == "aggregated" and pattern.startswith("udp://")


def _row(cube, mode, pattern, level):
    def at(switch, **more):
        high, low = divmod(level * cube.switches + switch, 256)
        return pattern.format(level=level, switch=switch, network=f"{high}.{low}", **more)

    if mode == "aggregated":
        return [at(switch) for switch in range(cube.switches)]
    return [at(cube.switch_of(server, level), server=server,
               host=_FIRST_HOST + cube.digits(server)[level]) for server in range(cube.servers)]


def addresses(cube, mode, pattern):
    """By level, then by switch or, plain, by server; InvalidArgument if one is of no use or two
    are the same."""
    _check_fields("--address", pattern, _MAY_HOLD[mode], f"of mode {mode} ")
    if not pattern.startswith(("udp://", "inproc://")):
        raise errors.InvalidArgument(f"--address {pattern}: a BCube's addresses are udp://; give "
                                     f"for example {PATTERNS[mode]}")
    place = "switch" if mode == "aggregated" else "server"
    if _is_configured(mode, pattern) and cube.ports > _APPLIANCE_PORTS:
        raise errors.InvalidArgument(
            f"bcube({cube.ports},{cube.levels}): an appliance has {_APPLIANCE_PORTS} ports at "
            f"most, not {cube.ports}; plan more levels with fewer ports, or --mode plain")
    rows = [_row(cube, mode, pattern, level) for level in range(cube.levels)]
    seen = {}
    for level, row in enumerate(rows):
        for index, address in enumerate(row):
            here = f"level {level}, {place} {index}"
            wrong = _out_of_range(address)
            if not wrong and _is_configured(mode, pattern):
                wrong = _unfit_for_appliance(address)
            if wrong:
                raise errors.InvalidArgument(
                    f"--address {pattern}: {here} would have {address}, and {wrong}; give another "
                    f"pattern, for example {_ALWAYS_FITS[mode]}")
            if address in seen:
                raise errors.InvalidArgument(
                    f"--address {pattern}: {seen[address]} and {here} have the same address, "
                    f"{address}")
            seen[address] = here
    if _is_configured(mode, pattern):
        _check_networks(pattern, seen)
    return rows


def _check_networks(pattern, places):
    """That a worker's routes tell its switches apart. `places`: by address."""
    seen = {}
    for address, here in places.items():
        network = ipaddress.ip_network(f"{_host_of(address)}/24", strict=False)
        if network in seen:
            raise errors.InvalidArgument(
                f"--address {pattern}: {seen[network]} and {here} are both in {network}, so no "
                f"route could tell them apart; give another pattern, for example "
                f"{_ALWAYS_FITS['aggregated']}")
        seen[network] = here


def cube_file(cube, mode, rows):
    text = [f"# BCube({cube.ports}, {cube.levels}): {cube.servers} workers. The same file on each; "
            f"its rank says which one it is.",
            f"ports = {cube.ports}", f"levels = {cube.levels}", f'mode = "{mode}"',
            "# By level, and in a level by " +
            ("switch." if mode == "aggregated" else
             "server: there its own process sums for its neighbours.")]
    quoted = [", ".join(f'"{address}"' for address in row) for row in rows]
    return "\n".join([*text, "appliances = [", *(f"  [{row}]," for row in quoted), "]"]) + "\n"


def appliance_file(cube, level, switch, address, interface):
    """The configuration of one switch, with a port for each of its servers."""
    host, _, port = address.removeprefix("udp://").rstrip("/").partition(":")
    lines = [f"# Switch {switch} of level {level}: workers " +
             ", ".join(map(str, cube.servers_of(level, switch))) + ".",
             "[appliance]", f'address = "{host}/24"', f"port = {port or 7700}"]
    for digit, server in enumerate(cube.servers_of(level, switch)):
        lines += ["", "[[port]]", f'name = "worker{server}"', 'type = "af_packet"',
                  f'interface = "{interface.format(digit=digit, server=server)}"']
    return "\n".join(lines) + "\n"


def drawing(cube, mode, rows):
    """Switches with their workers, then workers with their addresses."""
    lines = [f"BCube({cube.ports}, {cube.levels}), {mode}: {cube.servers} workers with "
             f"{cube.levels} ports, {cube.levels * cube.switches} " +
             ("switches" if mode == "aggregated" else "ordinary switches, which only forward,") +
             f" with {cube.ports}", ""]
    width = len(str(cube.servers - 1))
    for level in reversed(range(cube.levels)):
        for switch in range(cube.switches):
            joined = cube.servers_of(level, switch)
            marks = ["." * width] * cube.servers
            for server in joined:
                marks[server] = f"{server:>{width}}"
            name = f"level {level} switch {switch}"
            place = f"  {rows[level][switch]}" if mode == "aggregated" else ""
            lines.append(f"{name:<20} --+-- {' '.join(marks)}{place}")
        lines.append("")
    for server in range(cube.servers):
        ports = [rows[level][cube.switch_of(server, level) if mode == "aggregated" else server]
                 for level in range(cube.levels)]
        digits = ",".join(map(str, cube.digits(server)))
        lines.append(f"worker {server:>{width}} digits {digits}: " + ", ".join(ports))
        for level in range(cube.levels if cube.levels > 1 else 0):
            other, neighbour, switch = cube.detour(server, level)
            there = (rows[level][switch] if mode == "aggregated" else
                     _workers(cube.servers_of(level, switch), level))
            lines.append(f"  if that of level {level} is lost, {there}, by a route "
                         f"through worker {neighbour} at level {other}")
        for level, neighbour, other, switch in cube.ways_back(server) if mode == "plain" else ():
            there = _workers(cube.servers_of(other, switch), other)
            lines.append(f"  as one who stands in, {there}, by a route through worker {neighbour} "
                         f"at level {level}")
    return "\n".join(lines) + "\n"


def _workers(servers, level):
    """At their addresses of that level, which are of one network."""
    return f"workers {', '.join(map(str, servers))} at level {level}"


def write_plan(cube, mode, pattern, folder, interface="worker{digit}"):
    """Writes all files into `folder`; returns the drawing."""
    rows = addresses(cube, mode, pattern)
    files = {"cube.toml": cube_file(cube, mode, rows), "drawing.txt": drawing(cube, mode, rows)}
    if _is_configured(mode, pattern):
        if not _check_fields("--interface", interface, ("digit", "server")):
            raise errors.InvalidArgument(f"--interface {interface}: all ports of a switch would "
                                         f"have it; give for example {interface}{{digit}}")
        for level, row in enumerate(rows):
            for switch, address in enumerate(row):
                files[f"switch-{level}-{switch}.toml"] = appliance_file(
                    cube, level, switch, address, interface)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return files["drawing.txt"]


def add_arguments(parser):
    commands = parser.add_subparsers(dest="bcube_command", required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="write addresses, appliances' settings and a drawing")
    plan.add_argument("--ports", type=int, required=True, help="n, of a switch")
    plan.add_argument("--levels", type=int, required=True, help="k, and ports of a worker")
    plan.add_argument("--mode", choices=MODES, default=MODES[0],
                      help="aggregated: the switches sum; plain: the workers do")
    plan.add_argument("--address", help="of an appliance, an IPv4 address with {level} and "
                      "{switch} or {network}, which is two numbers, as in udp://10.{network}.1; "
                      "plain: of a worker, or its name, also with {server} and {host}, which is "
                      "10 and its digit; default " + " or ".join(PATTERNS.values()))
    plan.add_argument("--interface", default="worker{digit}",
                      help="of a switch's port to a worker, with {digit} or {server}")
    plan.add_argument("--out", default="bcube", help="folder; default ./bcube")


def run(options):
    try:
        cube = Cube(options.ports, options.levels)
        text = write_plan(cube, options.mode, options.address or PATTERNS[options.mode],
                          options.out, options.interface)
    except errors.InvalidArgument as error:
        print(f"bcube plan: {error}")
        return 2
    print(text, end="")
    print(f"\nWritten to {options.out}. Workers join with bcube://{options.ports},{options.levels}"
          f"?file={Path(options.out).resolve() / 'cube.toml'}")
    return 0
