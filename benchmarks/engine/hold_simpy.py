"""The hold model on SimPy: hold_simpy.py processes|callbacks FILE PENDING (as src/main.rs)."""

import array
import sys
import time

import simpy


def processes(env, pending, increments, done):
    """A process for each pending event, as in SimPy's own examples."""

    def hold(first):
        yield env.timeout(first)
        for increment in increments:
            yield env.timeout(increment)
        finish(done)

    for first in pending:
        env.process(hold(first))
    # Each process starts at an event of its own.
    for _ in pending:
        env.step()


def callbacks(env, pending, increments, done):
    """Events without processes: the least that an event costs in SimPy."""
    timeout = env.timeout

    def fired(_):
        increment = next(increments, None)
        if increment is None:
            finish(done)
        else:
            timeout(increment).callbacks.append(fired)

    for first in pending:
        timeout(first).callbacks.append(fired)


def finish(done):
    if not done.triggered:
        done.succeed()


def main():
    way, path, pending = sys.argv[1], sys.argv[2], int(sys.argv[3])
    numbers = array.array("Q")
    with open(path, "rb") as file:
        numbers.frombytes(file.read())
    env = simpy.Environment()
    done = env.event()
    {"processes": processes, "callbacks": callbacks}[way](
        env, numbers[:pending], iter(numbers[pending:]), done
    )
    start = time.process_time_ns()
    env.run(until=done)
    print(time.process_time_ns() - start, env.now)


main()
