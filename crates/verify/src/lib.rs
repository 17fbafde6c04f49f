//! wip
#![allow(missing_docs)]
mod model;
mod pi_notify;
mod search;
mod word;
pub use model::{Choice, Violation};
pub use search::{End, Finding, Limits, Outcome};
#[cfg(test)]
mod scratch {
    use crate::pi_notify::*;
    use crate::search::*;
    use stealtime_hypervisor::posted_interrupt::Suppression;
    #[test]
    fn go() {
        let t0 = std::time::Instant::now();
        for policy in Suppression::ALL {
            for (n, c) in [("plain", Config::plain(policy)), ("alone", Config::alone(policy)), ("kicked", Config::kicked(policy)), ("full", Config::full(policy))] {
                if n == "full" && std::env::var("FULL").is_err() { continue; }
                let t = std::time::Instant::now();
                let o = explore(&PiNotify::new(c), Limits::default());
                eprintln!("{} {n}: {} states {} trans depth {} {:?} {:?}", policy.name(), o.states, o.transitions, o.depth, o.end, t.elapsed());
                for f in o.findings { eprintln!("   {:?} len {}", f.violation, f.path.len()); }
            }
        }
        eprintln!("{:?}", t0.elapsed());
    }
}
