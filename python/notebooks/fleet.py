"""Where guest time goes on a fleet."""

import marimo

app = marimo.App()


@app.cell
def _():
    import os
    import tempfile
    from pathlib import Path

    import altair as alt
    import duckdb
    import marimo as mo

    import stealtime

    return Path, alt, duckdb, mo, os, stealtime, tempfile


@app.cell
def _(Path, os, stealtime, tempfile):
    top = Path(os.environ.get("STEALTIME_TRACES") or Path(__file__).parents[2] / "tests" / "data")
    files = (path for path in top.rglob("*") if "reference" not in path.parts)
    recordings = sorted(path for path in files if {".dat", ".data"} & set(path.suffixes))
    folder = Path(tempfile.mkdtemp(prefix="stealtime-")) / "fleet"
    summary = stealtime.analyze(recordings, folder)
    return folder, recordings, summary


@app.cell
def _(mo, recordings, summary):
    mo.md(f"{len(recordings)} recordings, {summary['failed']} of them cannot be read.")
    return


@app.cell
def _(duckdb, folder):
    # The times of a vCPU's span; `wake_wait_ns` and `preempted_ns` are waits for a CPU.
    times = duckdb.read_parquet(f"{folder}/time.parquet")  # noqa: F841
    shares = duckdb.sql("""
        select regexp_extract(recording, '([^/]+(/[^/]+)?)/[^/]*$', 1) as recording, state,
            sum(ns) / 1e9 as seconds
        from (unpivot (select recording, guest_ns, exit_ns, poll_ns, halt_ns, preempted_ns, wake_wait_ns
            from times) on columns(* exclude recording) into name state value ns)
        group by all
    """).pl()
    return (shares,)


@app.cell
def _(alt, shares):
    chart = alt.Chart(shares).mark_bar().encode(
        x=alt.X("seconds", stack="normalize", title="share of the vCPUs' time"), y="recording", color="state"
    )  # fmt: skip
    chart
    return (chart,)


@app.cell
def _(duckdb, folder):
    # Percentiles of the fleet, from buckets that add up.
    histograms = duckdb.read_parquet(f"{folder}/histograms.parquet")  # noqa: F841
    waits = duckdb.sql("""
        with merged as (
            select up_to_ns, sum(count) as count from histograms
            where "table" = 'waits' group by up_to_ns
        ), ranked as (
            select up_to_ns, sum(count) over (order by up_to_ns) as reached, sum(count) over () as total
            from merged
        )
        select percentile, min(up_to_ns) / 1e6 as ms
        from ranked, (values (50), (90), (99)) as wanted(percentile)
        where reached * 100 >= total * percentile
        group by percentile order by percentile
    """)
    waits
    return (waits,)


if __name__ == "__main__":
    app.run()
