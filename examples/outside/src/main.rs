//! Uses three libraries of stealtime from outside: clocks of a VM by descriptors, a recording's events,
//! and the fair class.
//!
//! ```text
//! outside [RECORDING]
//! ```

use std::error::Error;

use stealtime_hypervisor::fair::{Attr, Config, Fair, PickMode};

fn main() -> Result<(), Box<dyn Error>> {
    let recording = std::env::args_os().nth(1);
    if let Some(path) = &recording {
        let mut source = stealtime_trace::open(path.as_ref())?;
        let mut events = 0u64;
        while let Some(event) = source.next_event()? {
            events += u64::from(event.kind.is_host_event());
        }
        println!("{events} events");
    }

    let mut fair = Fair::new(Config::linux_7_2(1))?;
    let cpu = fair.create_rq(PickMode::Hierarchical)?;
    let task = fair.create_task(Attr::default(), None)?;
    fair.fork(task, cpu, 0)?;
    println!("the fair class picks {:?}", fair.pick(cpu, 0)?.task);

    #[cfg(feature = "clocks")]
    clocks::over_a_snapshot()?;
    Ok(())
}

/// What a VMM with descriptors of its own calls.
#[cfg(feature = "clocks")]
mod clocks {
    use std::error::Error;
    use std::os::fd::BorrowedFd;

    use guest_clock::device::Stopping;
    use guest_clock::kvm::{RawVcpu, RawVm, host};
    use guest_clock::{Explanation, GuestClocks, Options, Policy, Saved};

    fn save(vm: BorrowedFd<'_>, vcpus: &[RawVcpu<'_>]) -> Result<Vec<u8>, Box<dyn Error>> {
        let saved = GuestClocks::save_with(&RawVm::new(vm), vcpus, Stopping::Done)?;
        Ok(saved.to_bytes())
    }

    fn restore(
        file: &[u8],
        vm: BorrowedFd<'_>,
        vcpus: &[RawVcpu<'_>],
    ) -> Result<Explanation, Box<dyn Error>> {
        let options = Options::new(Policy::ELAPSED).stopping(Stopping::Done);
        let saved = match cfg!(feature = "json") {
            true => Saved::load(file)?,
            false => Saved::from_bytes(file)?,
        };
        Ok(saved.restore(&RawVm::new(vm), vcpus, options)?)
    }

    /// Descriptors 3 and on are a VM and its vCPUs, if the caller has opened them.
    pub fn over_a_snapshot() -> Result<(), Box<dyn Error>> {
        if let Err(error) = host() {
            println!("clocks: {error}");
            return Ok(());
        }
        let Ok(count) = std::env::var("VCPUS") else {
            println!("clocks: this host can save and restore them");
            return Ok(());
        };
        let count: i32 = count.parse()?;
        // SAFETY: the caller says that these descriptors are open, and nothing here closes them.
        let (vm, vcpus) = unsafe {
            let vcpus = (4..4 + count).map(|fd| RawVcpu::new(BorrowedFd::borrow_raw(fd)));
            (BorrowedFd::borrow_raw(3), vcpus.collect::<Vec<_>>())
        };
        println!("{}", restore(&save(vm, &vcpus)?, vm, &vcpus)?);
        Ok(())
    }
}
