//! A small VMM that snapshots a running guest of two vCPUs to disk, and another process that
//! brings it back with its clocks right.
//!
//! ```text
//! cargo run -p guest-clock --example snapshot_vmm              # both, one after the other
//! cargo run -p guest-clock --example snapshot_vmm save DIR
//! cargo run -p guest-clock --example snapshot_vmm restore DIR
//! ```

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => vmm::both(),
        ["save", dir] => vmm::save(dir.as_ref()),
        ["restore", dir] => vmm::restore(dir.as_ref()),
        _ => Err("usage: snapshot_vmm [save DIR | restore DIR]".into()),
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("the guest is x86-64 on Linux");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod vmm {
    use std::error::Error;
    use std::fs;
    use std::path::Path;
    use std::process::{Command, id};
    use std::sync::Arc;
    use std::time::Duration;

    use guest_clock::guest::{Guest, Memory, Registers};
    use guest_clock::{GuestClocks, Policy, Saved};

    const VCPUS: usize = 2;
    const RUN: Duration = Duration::from_millis(100);

    /// Runs a guest, stops its vCPUs where they are, and writes clocks, registers and memory.
    pub(crate) fn save(dir: &Path) -> Result<(), Box<dyn Error>> {
        let mut guest = Guest::new(VCPUS)?;
        guest.run_for(RUN)?;
        // Clocks first: what is saved later costs the guest no time.
        let saved = GuestClocks::save(&guest.vm, &guest.vcpus)?;
        fs::write(dir.join("clocks.json"), saved.to_json())?;
        let registers = serde_json::to_string(&guest.registers()?)?;
        fs::write(dir.join("registers.json"), registers)?;
        fs::write(dir.join("memory"), guest.memory().copy_out())?;
        let seen = guest.seen();
        println!(
            "process {}: {} readings, the last at kvmclock {} ns",
            id(),
            seen.rounds,
            seen.latest_clock_ns
        );
        Ok(())
    }

    /// Reads all three, and lets the guest go on where it was.
    pub(crate) fn restore(dir: &Path) -> Result<(), Box<dyn Error>> {
        let bytes = fs::read(dir.join("memory"))?;
        let memory = Memory::new(bytes.len())?;
        memory.copy_in(0, &bytes);
        let saved = Saved::load(&fs::read(dir.join("clocks.json"))?)?;
        let registers: Vec<Registers> =
            serde_json::from_slice(&fs::read(dir.join("registers.json"))?)?;
        let mut guest = Guest::with_memory(Arc::new(memory), VCPUS)?;
        guest.set_registers(&registers)?;
        let before = guest.seen();
        // The last thing before the vCPUs run.
        let explanation = saved.restore(&guest.vm, &guest.vcpus, Policy::ELAPSED)?;
        guest.run_for(RUN)?;
        let seen = guest.seen();
        println!("process {}: {explanation}", id());
        println!(
            "process {}: {} readings more, TSC back by {} cycles, kvmclock by {} ns, at most",
            id(),
            seen.rounds - before.rounds,
            seen.tsc_back,
            seen.clock_back_ns
        );
        if seen.tsc_back > 0 || seen.clock_back_ns > 0 || seen.unstable > 0 {
            return Err("the guest saw its clocks go wrong".into());
        }
        if seen.rounds <= before.rounds {
            return Err("the guest did not go on".into());
        }
        Ok(())
    }

    /// Saves in one process and restores in another.
    pub(crate) fn both() -> Result<(), Box<dyn Error>> {
        let dir = std::env::temp_dir().join(format!("snapshot-vmm-{}", id()));
        fs::create_dir(&dir)?;
        let ran = ["save", "restore"].iter().try_for_each(|what| {
            let status = Command::new(std::env::current_exe()?)
                .arg(what)
                .arg(&dir)
                .status()?;
            std::thread::sleep(Duration::from_millis(300));
            match status.success() {
                true => Ok(()),
                false => Err(format!("{what}: {status}").into()),
            }
        });
        fs::remove_dir_all(&dir)?;
        ran
    }
}
