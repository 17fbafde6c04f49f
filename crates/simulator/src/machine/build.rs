//! Making a machine from its configuration.

use super::Machine;
use crate::config::{Config, VmConfig};
use crate::fault::{Fault, Sim};
use crate::guest::{GuestBuilder, Guests};
use crate::host::{Body, EngineEvent, Host, Message, TaskState, build as host_build};
use crate::kvm::{Kvm, build as kvm_build};
use crate::script::{self, ScriptRunner};
use crate::sink::Sink;
use crate::workload;

/// Makes a guest's threads.
pub type Recipe<'r> = &'r mut dyn FnMut(&VmConfig, &mut GuestBuilder) -> Sim;

impl<'a> Machine<'a> {
    /// Makes the host and its guests, at time 0. Events go to `sink`.
    ///
    /// # Errors
    ///
    /// A configuration that cannot be run.
    pub fn new(cfg: &Config, sink: &'a mut dyn Sink) -> Result<Self, Fault> {
        Self::with_recipes(cfg, sink, &mut |vm, guest| {
            workload::build(&vm.workload, guest)
        })
    }

    /// The same, where `recipe` makes each guest's threads and what they share, whatever workload
    /// its configuration names.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and what `recipe` finds wrong.
    pub fn with_recipes(
        cfg: &Config,
        sink: &'a mut dyn Sink,
        recipe: Recipe<'_>,
    ) -> Result<Self, Fault> {
        cfg.check()?;
        let mut machine = Machine {
            host: Host::new(cfg, sink)?,
            kvm: Kvm::default(),
            guests: Guests::default(),
            scripts: ScriptRunner::new(&cfg.scripts),
        };
        host_build::add_tasks(&mut machine.host)?;
        kvm_build::add_vms(
            &mut machine.kvm,
            &mut machine.guests,
            &mut machine.host,
            recipe,
        )?;
        script::add_tasks(&mut machine.scripts, &mut machine.host)?;
        if cfg.run.warmup_ns > 0 {
            let clock = machine.host.clock_mut();
            let slot = clock.slot(EngineEvent::Measure);
            clock.arm(slot, cfg.run.warmup_ns);
        } else {
            machine.begin_measuring();
        }
        host_build::introduce(&mut machine.host);
        machine.start_tasks()?;
        Ok(machine)
    }

    /// All tasks are forked, spread over the CPUs that they may use.
    fn start_tasks(&mut self) -> Sim {
        for vm in self.guests.vms() {
            let time = self.guests.vm(vm).cfg.start_ns;
            if time > 0 {
                self.host.post(time, Message::Start { vm });
            } else {
                kvm_build::start_vm(&self.kvm, &mut self.guests, &mut self.host, vm)?;
            }
        }
        for task in self.host.tasks().numbers() {
            let later = self.host.tasks()[task].state == TaskState::New;
            if !later
                && !matches!(
                    self.host.tasks()[task].body,
                    Body::Vcpu(_) | Body::Worker(_)
                )
            {
                let cpu = match self.host.tasks()[task].body {
                    Body::Script(_) => self.host.tasks()[task].cpu,
                    _ => self.host.least_loaded(task),
                };
                self.host.fork(task, cpu)?;
            }
        }
        Ok(())
    }
}
