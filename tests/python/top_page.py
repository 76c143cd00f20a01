"""An appliance's metrics page about a job, and the reading of such pages by `top`."""

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from sluice import _top_model, _top_pages, _top_view


def page(step=11, late=30, gradient=(0.1, 0.12, 0.11, 0.9), missing=(3,), k=3, policy="fixed",
         job="digits", silent=(0.01, 0.01, 0.01, 4.2), dropped=7, received=1_000_000, loops=1000):
    """What an appliance answers about a job of four ranks with 100 chunks, rank 3 being slow."""
    lines = [
        "# HELP sluice_jobs Jobs.", "# TYPE sluice_jobs gauge", "sluice_jobs 1",
        f'sluice_job_members{{job="{job}"}} 4', f'sluice_job_world_size{{job="{job}"}} 5',
        f'sluice_job_running{{job="{job}"}} 1', f'sluice_job_step{{job="{job}"}} {step}',
        f'sluice_job_chunks{{job="{job}"}} 100', f'sluice_job_k{{job="{job}"}} {k}',
        f'sluice_job_policy_info{{job="{job}",policy="{policy}",late="requeue"}} 1',
        f'sluice_job_noise_scale{{job="{job}"}} 3.25',
        f'sluice_job_noise_scale_valid{{job="{job}"}} 1',
        f'sluice_job_signs_flipped_ratio{{job="{job}"}} 0.49',
        f'sluice_job_step_duration_seconds_bucket{{job="{job}",le="0.1"}} 0',
        f'sluice_job_step_duration_seconds_bucket{{job="{job}",le="0.2"}} {step - 1}',
        f'sluice_job_step_duration_seconds_bucket{{job="{job}",le="+Inf"}} {step - 1}',
        f'sluice_packets_total{{reason="folded",use="useful"}} {step * 400}',
        'sluice_packets_total{reason="bad_cookie",use="foreign"} 0',
        f'sluice_packets_total{{reason="late",use="useless"}} {late}',
        f'sluice_port_dropped_packets_total{{port="left",reason="tail_drop"}} {dropped}',
        f'sluice_port_rx_bytes_total{{port="left"}} {received}',
        f'sluice_port_rx_packets_total{{port="left"}} {received / 1000}',
        'sluice_port_tx_bytes_total{port="left"} 0', 'sluice_port_tx_packets_total{port="left"} 0',
        'sluice_port_link_up{port="left"} 1', 'sluice_port_queue_packets{port="left"} 12',
        'sluice_lcore_busy_ratio{lcore="0"} 0.5', f'sluice_lcore_loops_total{{lcore="0"}} {loops}',
        "sluice_buffers_in_use_packets 40", "sluice_buffers_capacity_packets 4096"]
    for rank in range(4):
        labels = f'job="{job}",rank="{rank}"'
        included = (step - 1) * (100 if rank != 3 else 10)
        lines += [
            f"sluice_job_included_chunks_total{{{labels}}} {included}",
            f"sluice_job_late_chunks_total{{{labels}}} {late if rank == 3 else 0}",
            f"sluice_job_requeued_chunks_total{{{labels}}} {late / 2 if rank == 3 else 0}",
            f"sluice_job_missing{{{labels}}} {int(rank in missing)}",
            f"sluice_job_member_silent_seconds{{{labels}}} {silent[rank]}",
            f'sluice_job_arrival_lag_seconds_bucket{{{labels},le="0.01"}} {step - 1}',
            f'sluice_job_arrival_lag_seconds_bucket{{{labels},le="+Inf"}} {step - 1}']
        if gradient:
            lines += [f"sluice_job_gradient_seconds{{{labels}}} {gradient[rank]}",
                      f"sluice_job_gradient_step{{{labels}}} {step if rank != 3 else step - 8}"]
    return "\n".join(lines) + "\n"


def scraped(text, time_s=0.0):
    return _top_pages.Scrape(text_string_to_metric_families(text), time_s)


def scrape(time_s, **values):
    return scraped(page(**values), time_s)


def view(now, before=None):
    return _top_model.view(_top_pages.Span(now, before or now))


def shown(name, its_view, problem="", age_s=0):
    return _top_model.Page(name, its_view, problem, age_s)


def frame(pages, columns=100, rows=None):
    """The lines of the frame, as text."""
    console = Console(markup=False, emoji=False, highlight=False, width=columns)
    with console.capture() as captured:
        console.print(_top_view.frame(pages, columns, rows))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def printed(its_view, columns=100, rows=None):
    """Of one page."""
    return frame([shown("box", its_view)], columns, rows)
