"""`python3 -m sluice top`: a live view of jobs, from the /metrics of appliances or workers alone.

Shows each job's step rate, k, who is late and by how much, whom the oldest open chunk waits for,
drops by reason, and the ports; of several appliances those of a BCube as one job, and who does not
answer; of workers (SLUICE_METRICS) a job by worker, and by thread and level. On a terminal it
redraws until q; into a file or a pipe it prints one frame. Needs rich and prometheus_client
(Debian: python3-rich, python3-prometheus-client).
"""

import os
import sys

DEFAULT_ADDRESS = "127.0.0.1:9464"


def metrics_url(address):
    """The URL for 'host', 'host:port', '[v6]:port' or a URL; ValueError says what is wrong."""
    if "://" in address:
        if not address.startswith(("http://", "https://")):
            scheme = address.partition("://")[0]
            raise ValueError(f"{address}: {scheme}:// is not where metrics are: give HOST:PORT of "
                             "metrics.address in the appliance's configuration")
        bare = address.count("/") == 2 or address.endswith("/") and address.count("/") == 3
        return address.rstrip("/") + "/metrics" if bare else address
    host, _, port = address.rpartition(":")
    if not host or address.endswith("]"):
        host, port = address, DEFAULT_ADDRESS.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address}: {port!r} is not a port: give HOST:PORT, for example "
                         f"{DEFAULT_ADDRESS}")
    return f"http://{host}:{port}/metrics"


def add_arguments(parser):
    parser.add_argument("address", nargs="*", metavar="ADDRESS",
                        help="HOST or HOST:PORT of an appliance's metrics, its metrics.address "
                             f"(default {DEFAULT_ADDRESS}), or of a worker's, its "
                             "SLUICE_METRICS; several are shown as one")
    parser.add_argument("--url", help="the whole URL, when something stands before the appliance")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S",
                        help="seconds between scrapes (default 2)")
    parser.add_argument("--once", action="store_true",
                        help="print one frame as text, with rates over one interval")


def run(options):
    if not 0.1 <= options.interval <= 3600:
        print(f"sluice top: --interval {options.interval:g}: give 0.1 to 3600 seconds",
              file=sys.stderr)
        return 2
    if options.address and options.url:
        print(f"sluice top: {' '.join(options.address)} and --url {options.url}: give one of "
              "them", file=sys.stderr)
        return 2
    try:
        from sluice import _top_live
    except ImportError as error:
        print(f"sluice top needs {error.name}: apt install python3-rich python3-prometheus-client, "
              "or pip install rich prometheus-client", file=sys.stderr)
        return 1
    try:
        urls = [metrics_url(address) for address in
                options.address or [options.url or DEFAULT_ADDRESS]]
        for index, url in enumerate(urls):
            if url in urls[:index]:
                raise ValueError(f"{options.address[index]}: {url} is given twice")
        if sys.stdout.isatty() and not options.once and os.environ.get("TERM") != "dumb":
            _top_live.watch(urls, options.interval)
        else:
            _top_live.once(urls, options.interval, sys.stdout)
        return 0
    except ValueError as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 2
    except _top_live.Unusable as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except _top_live.Ended as ended:
        return ended.status
