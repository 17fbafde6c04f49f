//! `hackbench`: groups of threads that send each other small messages.

use super::Workload;
use super::params::{ParamDoc, Params};
use super::tools::{Channel, Runs};
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{Passes, Thread};

/// What a socket holds of 100-byte messages: `net.core.wmem_default` is 212 992 bytes, and each
/// message takes an skb of 768 bytes of it.
const SOCKET_MESSAGES: u32 = 277;

pub(super) const HACKBENCH: Workload = Workload {
    name: "hackbench",
    about: "groups of senders and receivers: each sender sends to each receiver of its group over \
        a socket. An operation is a message, a latency is a whole run of all loops",
    params: &[
        ParamDoc {
            name: "groups",
            default: 10,
            min: 1,
            max: 1000,
            unit: "",
            about: "groups (hackbench -g, its default)",
        },
        ParamDoc {
            name: "fds",
            default: 20,
            min: 1,
            max: 200,
            unit: "",
            about: "senders and as many receivers in a group (hackbench -f, its default)",
        },
        ParamDoc {
            name: "loops",
            default: 100,
            min: 1,
            max: 1_000_000,
            unit: "",
            about: "messages from each sender to each receiver in a run (hackbench -l, its default)",
        },
        ParamDoc {
            name: "size",
            default: 100,
            min: 1,
            max: 65_536,
            unit: "bytes",
            about: "size of a message (hackbench -s, its default); 1 ns for 16 bytes is copied on \
                    each side (estimate: 16 GB/s)",
        },
        ParamDoc {
            name: "send_ns",
            default: 700,
            min: 0,
            max: 1_000_000,
            unit: "ns",
            about: "kernel work of a send beyond the system call, a receive the same (874 ns a side \
                    with the system call, measured: 100 bytes over an AF_UNIX stream and back out in \
                    one thread, Linux 6.18 in a VM on an AMD EPYC)",
        },
    ],
    build,
};

fn build(params: &Params, guest: &mut GuestBuilder) -> Sim {
    let (groups, fds, loops) = (
        params.count("groups"),
        params.count("fds"),
        params.count("loops"),
    );
    let work = params.get("send_ns") + params.get("size") / 16;
    let runs = Runs::new(guest, groups * fds * 2);
    for group in 0..groups {
        let sockets: Vec<Channel> = (0..fds)
            .map(|n| Channel::new(guest, &format!("socket/{group}/{n}"), SOCKET_MESSAGES))
            .collect();
        let Some(messages) = Channel::sends_in_turns(&sockets, loops, work) else {
            continue;
        };
        for n in 0..fds {
            let runs = runs.clone();
            guest.spawn(&format!("sender/{group}/{n}"), None, move |thread| {
                sender(thread, messages, runs)
            })?;
        }
        for (n, source) in sockets.iter().enumerate() {
            let (messages, runs) = (source.receives(loops * fds, work), runs.clone());
            guest.spawn(&format!("receiver/{group}/{n}"), None, move |thread| {
                receiver(thread, messages, runs)
            })?;
        }
    }
    Ok(())
}

async fn sender(thread: Thread, messages: Passes, runs: Runs) {
    loop {
        thread.passes(messages).await;
        runs.end(&thread).await;
    }
}

async fn receiver(thread: Thread, messages: Passes, runs: Runs) {
    loop {
        thread.passes(messages).await;
        runs.end(&thread).await;
    }
}
