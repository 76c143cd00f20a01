"""The pages of metrics that `top` asks for: fetched, read, and kept for some seconds.

Each answer that is awaited has a thread, so no page holds up another one, or the keys. All else is
the main thread's. Imports prometheus_client, which only `top` needs.
"""

import collections
import http.client
import base64
import math
import netrc
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from sluice import _top_model

_TIMEOUT_S = 3.0
_MAX_BYTES = 64 << 20
_PATIENCE_S = 5.0  # a name is looked up, too, and bytes may come one by one
_POLL_S = 0.02


class Unusable(Exception):
    """The endpoint does not answer with Sluice's metrics; the text says what to do."""

    def __init__(self, url, what, hint):
        super().__init__(f"{url}: {what}: {hint}")
        self.what, self.hint = what, hint


class Scrape:
    """One answer of the endpoint: samples by name, and when they came.

    `families`: of prometheus_client's parser. A histogram appears as its parts: NAME_bucket,
    NAME_sum, NAME_count.
    """

    def __init__(self, families, time_s):
        self.samples = collections.defaultdict(list)
        for family in families:
            for sample in family.samples:
                self.samples[sample.name].append(sample)
        self.time_s = time_s
        self._grouped = {}

    @property
    def is_workers(self):
        return "sluice_worker_jobs" in self.samples

    def rows(self, name, *keys):
        """A dict from the values of the labels `keys` (a tuple) to the value."""
        index = (name, keys)
        if index not in self._grouped:
            self._grouped[index] = {tuple(sample.labels.get(key, "") for key in keys): sample.value
                                    for sample in self.samples.get(name, ())}
        return self._grouped[index]

    def value(self, name, default=None, **labels):
        return self.rows(name, *labels).get(tuple(labels.values()), default)

    def buckets(self, name, **labels):
        """{upper bound: count} of a histogram."""
        keys = tuple(labels)
        index = (name, "buckets", keys)
        if index not in self._grouped:
            grouped = collections.defaultdict(dict)
            for (*key, bound), count in self.rows(name + "_bucket", *keys, "le").items():
                grouped[tuple(key)][float(bound)] = count
            self._grouped[index] = grouped
        return self._grouped[index].get(tuple(labels.values()), {})


def quantile(buckets, share):
    """The value below which `share` of a histogram's observations lie; None without any.

    `buckets` maps each upper bound, infinity among them, to the count up to it. Linear within a
    bucket; the lower bound of the last one, which has no upper bound. As histogram_quantile() of
    Prometheus.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    wanted = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted and buckets[bound] > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return low


class Span:
    """Two scrapes of a page: what it says now, and what has changed since the earlier one."""

    def __init__(self, now, before):
        self.now, self.before = now, before
        self.rows, self.value = now.rows, now.value
        self.seconds = now.time_s - before.time_s

    def per_second(self, new, old):
        if new is None or old is None or new < old or self.seconds <= 0:
            return None
        return (new - old) / self.seconds

    def rate(self, name, factor=1, **labels):
        found = self.per_second(*(scrape.value(name, **labels)
                                  for scrape in (self.now, self.before)))
        return None if found is None else found * factor

    def recent(self, name, share, whole=False, **labels):
        """quantile() of what has come into a histogram between the scrapes, or of all when nothing
        has. `whole`: counts, so the bound below which it lies."""
        new, old = (scrape.buckets(name, **labels) for scrape in (self.now, self.before))
        difference = {bound: count - old.get(bound, 0) for bound, count in new.items()}
        recent = any(difference.values()) and min(difference.values()) >= 0
        found = quantile(difference if recent else new, share)
        return min(bound for bound in new if bound >= found) if whole and found else found


def _request(url):
    """For `url`, with the user and the password that ~/.netrc has for its host."""
    request = urllib.request.Request(url)
    try:
        found = netrc.netrc().authenticators(urllib.parse.urlsplit(url).hostname)
    except FileNotFoundError:
        found = None
    except (OSError, netrc.NetrcParseError) as error:
        raise Unusable(url, f"~/.netrc can't be used ({error})", "mend or remove it") from None
    if found:
        words = base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {words}")
    return request


def fetch(url, timeout_s=_TIMEOUT_S):
    """A Scrape of the endpoint. Blocks for about `timeout_s`; Unusable names the URL and a remedy.

    No proxy is asked: the endpoint is on this network.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    hint = ("is sluiced running, and is this the metrics.address of its configuration (default "
            "127.0.0.1:9464), or the SLUICE_METRICS of a worker? On another machine give its "
            "address: python3 -m sluice top HOST:PORT")
    try:
        with opener.open(_request(url), timeout=timeout_s) as answer:
            body = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            hint = ("give the user and the password of metrics.password_file in ~/.netrc: "
                    f"machine {urllib.parse.urlsplit(url).hostname} login USER password PASSWORD")
        raise Unusable(url, f"the server answers {error.code} {error.reason}", hint) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise Unusable(url, f"no answer ({reason})", hint) from None
    if len(body) > _MAX_BYTES:
        raise Unusable(url, f"the page is larger than {_MAX_BYTES >> 20} MiB", hint)
    try:
        families = list(text_string_to_metric_families(body.decode("utf-8")))
    except (ValueError, LookupError) as error:
        raise Unusable(url, f"not a page of metrics ({error}), it begins with {body[:40]!r}",
                       hint) from None
    scrape = Scrape(families, time.monotonic())
    if "sluice_jobs" not in scrape.samples and not scrape.is_workers:
        raise Unusable(url, "metrics of something else, without sluice_jobs or sluice_worker_jobs",
                       hint)
    return scrape


class History:
    """The scrapes of the last seconds: rates are about the oldest and the newest of them."""

    def __init__(self, window_s):
        self._window_s = window_s
        self._scrapes = collections.deque()

    def add(self, scrape):
        if self._scrapes and _restarted(scrape, self._scrapes[-1]):
            self._scrapes.clear()
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and (
                scrape.time_s - self._scrapes[1].time_s >= self._window_s):
            self._scrapes.popleft()

    def span(self):
        """None before the first scrape."""
        return Span(self._scrapes[-1], self._scrapes[0]) if self._scrapes else None


def _restarted(scrape, before):
    """Whether counters of the appliance, or of a worker's job, began again."""
    now, then = (sum(one.rows("sluice_lcore_loops_total", "lcore").values()) +
                 sum(one.rows("sluice_worker_packets_sent_total", "job", "rank").values())
                 for one in (scrape, before))
    return now < then


class Asked:
    """A page, what it has said, and the one answer that may be under way. Main thread."""

    def __init__(self, url, window_s):
        self.url = url
        self._name = urllib.parse.urlsplit(url).netloc.removesuffix(":9464") or url
        self._history = History(window_s)
        self._view = None
        self._answers = queue.SimpleQueue()  # from the thread that asks
        self._since_s = None  # the answer under way
        self._heard_s = time.monotonic()
        self.error = None  # the last answer was none

    def ask(self):
        if self._since_s is None:
            self._since_s = time.monotonic()
            threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self):
        try:
            self._answers.put(fetch(self.url))
        except Unusable as error:
            self._answers.put(error)

    def take(self):
        """Whether something has changed."""
        overdue = self._since_s is not None and time.monotonic() - self._since_s > _PATIENCE_S
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            if not overdue or self.error is not None:
                return False
            answer = Unusable(self.url, f"no answer in {_PATIENCE_S:.0f} s", "it goes on asking")
        else:
            self._since_s = None
        self.error = answer if isinstance(answer, Unusable) else None
        if self.error is None:
            self._history.add(answer)
            self._view = _top_model.view(self._history.span())
            self._heard_s = answer.time_s
        return True

    @property
    def awaited(self):
        """It has not said anything, right or wrong, about the last question."""
        return self._since_s is not None and self.error is None

    def page(self):
        return _top_model.Page(self._name, self._view, self.error.what if self.error else "",
                               time.monotonic() - self._heard_s)


class Pages:
    """All that `top` shows. Main thread."""

    def __init__(self, urls, window_s):
        self._asked = [Asked(url, window_s) for url in urls]

    def ask(self):
        for one in self._asked:
            one.ask()

    def take(self):
        """Whether something has changed."""
        return any([one.take() for one in self._asked])

    def ask_all(self):
        """Returns when each has answered, or had the time for it. Unusable when nobody has."""
        for one in self._asked:
            one.error = None
        self.ask()
        self.take()
        while any(one.awaited for one in self._asked):
            time.sleep(_POLL_S)
            self.take()
        if all(self.errors):
            error = self.errors[0]
            raise error if len(self._asked) == 1 else Unusable(
                f"none of {len(self._asked)} pages answers, the first one, {self._asked[0].url}",
                error.what, error.hint)

    @property
    def urls(self):
        return [one.url for one in self._asked]

    @property
    def errors(self):
        """For each page why it has not answered last, else None."""
        return [one.error for one in self._asked]

    def shown(self):
        """A _top_model.Page for each."""
        return [one.page() for one in self._asked]
