"""Before and after: what a change does, predicted by a replay of the recording."""

import marimo

app = marimo.App()


@app.cell
def _():
    from pathlib import Path

    import altair as alt
    import polars as pl

    import stealtime

    return Path, alt, pl, stealtime


@app.cell
def _(Path, stealtime):
    recording = stealtime.open(
        Path(__file__).parents[2] / "tests" / "data" / "traces" / "svm-cfs" / "trace.dat"
    )
    before = recording.analyze()
    before.findings
    return before, recording


@app.cell
def _(before, pl):
    time = pl.DataFrame(before["time"])
    states = ["guest_ns", "exit_ns", "halt_ns", "preempted_ns", "wake_wait_ns"]
    split = time.unpivot(states, index=["vm", "vcpu"], variable_name="state", value_name="ns")
    return (split,)


@app.cell
def _(alt, pl, split):
    named = split.with_columns((pl.col("vm") + "/" + pl.col("vcpu").cast(pl.String)).alias("name"))
    chart = alt.Chart(named).mark_bar().encode(
        x=alt.X("ns", stack="normalize", title="share of the vCPU's time"), y="name", color="state"
    )  # fmt: skip
    chart
    return (chart,)


@app.cell
def _(recording):
    # After: each VM on both CPUs, with a 95 % interval over replays.
    after = recording.whatif(pin={"vm0": "1:1 0-1", "vm1": "1:1 0-1"}, seeds=3)
    variant = after["variants"][0]
    variant
    return after, variant


if __name__ == "__main__":
    app.run()
