"""Which halt-polling policy wins where: a sweep over the guest's period."""

import marimo

app = marimo.App()


@app.cell
def _():
    import tempfile
    from pathlib import Path

    import altair as alt
    import polars as pl

    import stealtime

    return Path, alt, pl, stealtime, tempfile


@app.cell
def _(Path, stealtime, tempfile):
    scenario = Path(__file__).parents[2] / "scenarios" / "halt-polling.toml"
    folder = Path(tempfile.mkdtemp(prefix="stealtime-")) / "sweep"
    vary = {"vm.web.workload.period_ns": ["50us", "100us", "200us", "400us", "1ms"]}
    summary = stealtime.sweep(scenario, vary, folder, seeds=3, duration="100ms")
    return folder, summary


@app.cell
def _(folder, pl):
    period = "vm.web.workload.period_ns"
    latency, busy = "vm.web.latency_mean_ns", "host.CPUs_busy_percent"
    runs = pl.read_parquet(folder / "results.parquet")
    points = runs.group_by("variant", period, maintain_order=True).agg(pl.mean(latency, busy))
    return busy, latency, period, points


@app.cell
def _(alt, busy, latency, period, points):
    # Column names have dots, which Vega takes for fields of fields.
    named = points.rename({period: "period_ns", latency: "latency_ns", busy: "busy"})
    chart = alt.Chart(named).mark_line(point=True).encode(
        x=alt.X("busy", title="CPUs busy (%)"), y=alt.Y("latency_ns", title="mean latency (ns)"),
        color="variant", detail="period_ns:N", order="period_ns",
    )  # fmt: skip
    chart
    return chart, named


@app.cell
def _(named, pl):
    best = named.sort("latency_ns").group_by("period_ns", maintain_order=True).first().sort("period_ns")
    best.select("period_ns", pl.col("variant").alias("lowest latency"), "latency_ns", "busy")
    return (best,)


if __name__ == "__main__":
    app.run()
