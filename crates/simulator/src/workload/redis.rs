//! `redis`: servers of one thread each, and clients beyond the network.

use super::Workload;
use super::params::{ParamDoc, Params};
use crate::fault::Sim;
use crate::guest::{Arrivals, GuestBuilder};
use crate::program::{SourceId, Thread};

pub(super) const REDIS: Workload = Workload {
    name: "redis",
    about: "servers of one thread that answer requests from the network; a latency is from the \
            arrival of a request at the card to its answer",
    params: &[
        ParamDoc {
            name: "servers",
            default: 1,
            min: 1,
            max: 4096,
            unit: "",
            about: "servers, each with clients and a queue of the card of its own; the queues' \
                interrupts go to vCPU 0, 1, … in turn (redis has one thread for requests)",
        },
        ParamDoc {
            name: "clients",
            default: 50,
            min: 0,
            max: 100_000,
            unit: "",
            about: "clients of a server, each with one request under way (redis-benchmark -c, its \
                    default); 0: requests come as an open stream",
        },
        ParamDoc {
            name: "think_ns",
            default: 100_000,
            min: 1,
            max: 10_000_000_000,
            unit: "ns",
            about: "mean time from an answer to the client's next request, network included; of an \
                    open stream, between two requests (estimate: another machine in the same rack)",
        },
        ParamDoc {
            name: "command_ns",
            default: 6_000,
            min: 0,
            max: 1_000_000_000,
            unit: "ns",
            about: "mean work of a command, network stack included (estimate: about 100 000 \
                    requests/s a core, as redis's documentation reports without pipelining)",
        },
        ParamDoc {
            name: "hz",
            default: 10,
            min: 1,
            max: 500,
            unit: "Hz",
            about: "rate of a server's housekeeping (redis.conf hz, its default and range)",
        },
    ],
    build,
};

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let (think, command) = (params.get("think_ns"), params.get("command_ns"));
    let period = 1_000_000_000 / params.get("hz").max(1);
    for n in 0..params.count("servers") {
        let arrivals = match params.count("clients") {
            0 => Arrivals::Open { mean_gap_ns: think },
            clients => Arrivals::Closed {
                clients,
                think_ns: think,
            },
        };
        let source = guest.source(&format!("requests/{n}"), arrivals, n);
        guest.new_process();
        guest.spawn(&format!("redis/{n}"), None, move |thread| {
            serve(thread, source, command)
        })?;
        guest.spawn(&format!("cron/{n}"), None, move |thread| {
            cron(thread, period)
        })?;
    }
    Ok(())
}

async fn serve(mut thread: Thread, source: SourceId, command: u64) {
    loop {
        let arrived = thread.receive(source).await;
        let work = thread.random.exponential(command);
        thread.compute(work).await;
        thread.respond(source).await;
        thread.took(thread.now() - arrived);
    }
}

/// `serverCron`: clients, keys that expire, statistics.
async fn cron(thread: Thread, period: u64) {
    loop {
        thread.sleep(period).await;
        thread.compute(20_000).await;
    }
}
