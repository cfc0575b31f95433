#!/usr/bin/env python3
"""Reads traces with the parser of TensorBoard's profiler plug-in and with HolisticTraceAnalysis, and compares their
totals with what is recomputed here from the JSON: within 0.1 %.

    check_traces.py FILE.pt.trace.json[.gz] ...

One line for each comparison that fails, one with counts for each file, last the total; exits 1 if any failed.
scripts/check_traces installs what this imports, and calls it.
"""

import gzip
import json
import logging
import os
import sys
import tempfile
import warnings

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # otherwise HTA rounds each event to whole microseconds
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

TOLERANCE = 1e-3
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def union(intervals):
    """The length of what intervals cover."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def by_name(events):
    totals = {}
    for event in events:
        totals[event["name"]] = totals.get(event["name"], 0.0) + event["dur"]
    return totals


class Ours:
    """What a trace comes to, from nothing but its JSON."""

    def __init__(self, file):
        with (gzip.open if file.endswith(".gz") else open)(file, "rb") as stream:
            self.json = json.load(stream)
        self.events = self.json["traceEvents"]
        spans = [e for e in self.events if e["ph"] == "X"]
        self.kernels = self.of(spans, "kernel")
        self.device = self.of(spans, *ON_DEVICE)
        self.ops = self.of(spans, "cpu_op")
        annotations = self.of(spans, "user_annotation")
        self.steps = [e for e in annotations if e["name"].startswith("ProfilerStep#")]
        self.memory = [e["args"] for e in self.events if e["ph"] == "i" and e["name"] == "[memory]"]
        if not self.ops:
            raise ValueError("it has no operators")  # or comparisons of nothing would pass

    @staticmethod
    def of(spans, *categories):
        return [e for e in spans if e.get("cat") in categories]

    @staticmethod
    def times(events):
        return [(e["ts"], e["ts"] + e["dur"]) for e in events]

    def utilization(self, device):
        """The share of the steps in which kernels ran."""
        times = self.times(self.steps)
        begin, end = min(t[0] for t in times), max(t[1] for t in times)
        kernels = self.times(e for e in self.kernels if e["pid"] == device)
        return union((max(b, begin), min(e, end)) for b, e in kernels if b < end and e > begin) / (end - begin)

    def peak(self, device):
        return max(m["Total Allocated"] for m in self.memory if (m["Device Type"], m["Device Id"]) == device)


class Checks:
    def __init__(self, file):
        self.file, self.passed, self.failed = file, 0, 0

    def equal(self, what, ours, theirs, of=None):
        """Numbers may differ by a share of `of`, or else of our own."""
        if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
            good = abs(ours - theirs) <= TOLERANCE * (abs(ours) if of is None else of)
        else:
            good = ours == theirs
        self.passed += good
        self.failed += not good
        if not good:
            print(f"{self.file}: {what}: {ours} here, {theirs} there")

    def totals(self, what, ours, theirs):
        self.equal(f"{what}: names", sorted(ours), sorted(theirs))
        for name in sorted(set(ours) & set(theirs)):
            self.equal(f"{what}: {name}", ours[name], float(theirs[name]))
        self.equal(f"{what}: sum", float(sum(ours.values())), float(sum(theirs.values())))


def check_tensorboard(ours, checks):
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.event_parser import ProfileRole
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    with tempfile.TemporaryDirectory() as folder:
        data = RunProfileData.parse("worker", None, checks.file, folder)
        views = RunGenerator("worker", None, data).generate_run_profile().views
    checks.equal("plug-in: views", True, {"Overview", "Operator"} <= {v.display_name for v in views})
    if ours.steps:
        checks.equal("plug-in: steps", sorted(e["name"].split("#")[1] for e in ours.steps), sorted(data.steps_names))
        if not data.has_runtime:  # otherwise steps reach to the end of what they started on a device
            mean = sum(e["dur"] for e in ours.steps) / len(ours.steps)
            checks.equal("plug-in: a step's time", mean, data.avg_costs.costs[ProfileRole.Total])
    counts, times = {}, by_name(ours.ops)
    for op in ours.ops:
        counts[op["name"]] = counts.get(op["name"], 0) + 1
    theirs = {op.name: op for op in data.op_list_groupby_name}
    checks.totals("plug-in: calls", counts, {name: op.calls for name, op in theirs.items()})
    checks.totals("plug-in: host time", times, {name: op.host_duration for name, op in theirs.items()})
    if ours.kernels:
        checks.totals("plug-in: kernels", by_name(ours.kernels), data.kernel_stat["sum"].to_dict())
        for device in sorted({e["pid"] for e in ours.kernels}) if ours.steps and not data.has_runtime else ():
            checks.equal(f"plug-in: utilization of {device}", ours.utilization(device),
                         data.gpu_metrics_parser.gpu_utilization[device])
    if ours.memory:
        for (kind, number), peak in data.memory_snapshot.get_peak_memory().items():
            checks.equal(f"plug-in: memory of {kind} {number}", ours.peak((int(kind), number)), peak)


def check_hta(ours, checks):
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: os.path.abspath(checks.file)}, trace_dir="",
                             include_last_profiler_step=True)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6, duration_ratio=1.0)
    theirs = kernels.groupby("name")["sum (us)"].sum().to_dict()
    checks.totals("HTA: kernels", by_name(ours.device), theirs)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    times = ours.times(ours.device)
    whole = max(t[1] for t in times) - min(t[0] for t in times)
    checks.equal("HTA: time of the device", whole, float(row["kernel_time(us)"]))
    checks.equal("HTA: idle time", whole - union(times), float(row["idle_time(us)"]), of=whole)  # it may be next to none
    compute = union(t for e, t in zip(ours.device, times) if e["cat"] == "kernel" and "nccl" not in e["name"].lower())
    checks.equal("HTA: compute time", compute, float(row["compute_time(us)"]))
    idle = analysis.get_idle_time_breakdown(visualize=False)[0]
    for stream in sorted({e["tid"] for e in ours.device}) if len({e["pid"] for e in ours.device}) == 1 else ():
        busy = sorted(t for e, t in zip(ours.device, times) if e["tid"] == stream)
        gaps = sum(max(0.0, b[0] - a[1]) for a, b in zip(busy, busy[1:]))
        checks.equal(f"HTA: idle time of stream {stream}", gaps,
                     float(idle[idle["stream"] == stream]["idle_time"].sum()), of=whole)


def check_file(file):
    checks = Checks(file)
    try:
        ours = Ours(file)
    except Exception as error:  # of whatever kind gzip, JSON and a look at what is no trace raise
        checks.failed += 1
        print(f"{file}: not a whole trace: {type(error).__name__}: {error}")
        return checks
    for check in (check_tensorboard, check_hta) if ours.kernels else (check_tensorboard,):
        try:
            check(ours, checks)
        except Exception as error:  # of the other program, on our trace
            checks.failed += 1
            print(f"{file}: {check.__name__}: {type(error).__name__}: {error}")
    return checks


def main(files):
    passed = failed = 0
    for file in files:
        checks = check_file(file)
        print(f"{file}: {checks.passed} passed, {checks.failed} failed")
        passed, failed = passed + checks.passed, failed + checks.failed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
