//! Points that scripts reach, and the scripts that wait for them.

use super::{Edge, ScriptConfig, Scripts, Step, Then, Until};
use crate::ids::TaskNr;

/// A point that a script reaches, as often as it is through with its steps.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    /// How often it was reached.
    reached: u32,
    /// When it was reached last, in ns.
    reached_ns: u64,
    /// It is reached once at the most: that is all that others can wait for.
    once: bool,
    /// The VM of which some vCPU halts until it is reached.
    ends_halt_in: Option<u32>,
    /// The script that waits for it.
    waits: Option<Waiter>,
}

impl Point {
    /// Whether it was reached for a script that waits in this pass, the first being 0.
    const fn is_reached(&self, pass: u32) -> bool {
        self.reached > pass || (self.once && self.reached > 0)
    }
}

/// A VM.
#[derive(Clone, Debug, Default)]
struct Vm {
    /// What its vCPUs have computed so far, in ns.
    work_ns: u64,
    /// vCPUs that halt until a point is reached, and which one; the longest wait is the first.
    idle: Vec<(TaskNr, Edge)>,
    /// vCPUs that halt until it has computed for so long in all, in ns, if no point is reached before.
    awaits_work: Vec<AwaitsWork>,
    /// How many vCPUs it has that are there, and how many of them halt.
    vcpus: usize,
    halted: usize,
}

/// A vCPU that halts until its VM has done some work.
#[derive(Clone, Copy, Debug)]
struct AwaitsWork {
    task: TaskNr,
    /// When the VM has computed for so long in all, in ns.
    until_ns: u64,
    /// [`Until::Work`]'s.
    busy: bool,
}

/// All points, and vCPUs that halt until one is reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points {
    points: Vec<Point>,
    vms: Vec<Vm>,
}

/// A script that waits for a point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) task: TaskNr,
    /// Its passes so far.
    pub(crate) pass: u32,
    /// The VM that it is a vCPU of, if it halts.
    pub(crate) idle_in: Option<u32>,
    /// It waits no longer when the VM has computed for so long in all, in ns; and whether an idle
    /// VM ends the wait too.
    pub(crate) work_ns: Option<(u64, bool)>,
}

impl Vm {
    /// If all vCPUs halt, the one that waits for the least work, which is not to come.
    fn idles(&self) -> Option<TaskNr> {
        if self.halted < self.vcpus {
            return None;
        }
        let waits = self.awaits_work.iter().filter(|wait| wait.busy);
        waits.min_by_key(|wait| wait.until_ns).map(|wait| wait.task)
    }
}

impl Points {
    /// The points of all scripts.
    pub(crate) fn new(scripts: &Scripts) -> Self {
        let mut points = vec![Point::default(); scripts.edges as usize];
        let once = |task: &&ScriptConfig| task.then != Then::Repeat;
        for task in scripts.tasks.iter().filter(once) {
            for step in task.steps.iter() {
                if let Step::Reach(edge) = *step
                    && let Some(point) = points.get_mut(edge.0 as usize)
                {
                    point.once = true;
                }
            }
        }
        let of_vms = scripts.tasks.iter().filter_map(|task| task.vm);
        let last = of_vms.max().map_or(0, |last| last as usize + 1);
        let mut vms = vec![Vm::default(); last];
        for task in scripts.tasks.iter().filter(|task| task.vcpu.is_some()) {
            for step in task.steps.iter() {
                if let Step::Halt(Until::Edge(edge) | Until::Work { edge, .. }) = *step
                    && let Some(point) = points.get_mut(edge.0 as usize)
                {
                    point.ends_halt_in = task.vm;
                }
            }
            // A vCPU that begins later is not there yet.
            let vm = task.vm.filter(|_| task.starts_ns == 0);
            if let Some(vm) = vm.and_then(|vm| vms.get_mut(vm as usize)) {
                vm.vcpus += 1;
            }
        }
        Self { points, vms }
    }

    /// What a VM has computed so far, in ns.
    pub(crate) fn work_ns(&self, vm: u32) -> u64 {
        self.vms.get(vm as usize).map_or(0, |vm| vm.work_ns)
    }

    /// A VM has computed for so long, in ns.
    pub(crate) fn work(&mut self, vm: u32, ns: u64) {
        if let Some(vm) = self.vm_mut(Some(vm)) {
            vm.work_ns += ns;
        }
    }

    /// A task that waits for what its VM has computed so far.
    pub(crate) fn awaits_done(&self, vm: u32) -> Option<TaskNr> {
        let vm = self.vms.get(vm as usize)?;
        let mut waits = vm.awaits_work.iter();
        let finished = waits.find(|wait| wait.until_ns <= vm.work_ns);
        finished.map(|wait| wait.task)
    }

    /// A vCPU begins in the middle of the run.
    pub(crate) fn begins(&mut self, vm: u32) {
        if let Some(vm) = self.vm_mut(Some(vm)) {
            vm.vcpus += 1;
        }
    }

    /// It has ended. If all others of its VM halt, the one that waits for the least work.
    pub(crate) fn ends(&mut self, vm: u32) -> Option<TaskNr> {
        let vm = self.vm_mut(Some(vm))?;
        vm.vcpus = vm.vcpus.saturating_sub(1);
        vm.idles()
    }

    /// A vCPU halts. If all of its VM do, the one that waits for the least work.
    pub(crate) fn halts(&mut self, vm: u32) -> Option<TaskNr> {
        let vm = self.vm_mut(Some(vm))?;
        vm.halted += 1;
        vm.idles()
    }

    /// It does not halt any longer.
    pub(crate) fn halted(&mut self, vm: u32) {
        if let Some(vm) = self.vm_mut(Some(vm)) {
            vm.halted = vm.halted.saturating_sub(1);
        }
    }

    /// Whether a point was reached for a script that waits in this pass.
    pub(crate) fn is_reached(&self, edge: Edge, pass: u32) -> bool {
        let point = self.points.get(edge.0 as usize);
        point.is_none_or(|point| point.is_reached(pass))
    }

    /// When a point was reached for a script that waits in this pass, in ns.
    pub(crate) fn reached_ns(&self, edge: Edge, pass: u32) -> Option<u64> {
        let point = self.points.get(edge.0 as usize);
        let reached = point.filter(|point| point.is_reached(pass));
        reached.map(|point| point.reached_ns)
    }

    /// A script waits from now on.
    pub(crate) fn wait(&mut self, edge: Edge, waiter: Waiter) {
        if let Some(point) = self.points.get_mut(edge.0 as usize) {
            point.waits = Some(waiter);
        }
        if let Some(vm) = self.vm_mut(waiter.idle_in) {
            match waiter.work_ns {
                Some((until_ns, busy)) => vm.awaits_work.push(AwaitsWork {
                    task: waiter.task,
                    until_ns,
                    busy,
                }),
                None => vm.idle.push((waiter.task, edge)),
            }
        }
    }

    /// It waits no longer; its VM, if it is a vCPU.
    pub(crate) fn leave(&mut self, edge: Option<Edge>, task: TaskNr, vcpu_of: Option<u32>) {
        let point = edge.and_then(|edge| self.points.get_mut(edge.0 as usize));
        if let Some(point) = point {
            point.waits.take_if(|waits| waits.task == task);
        }
        if let Some(vm) = self.vm_mut(vcpu_of) {
            vm.idle.retain(|waiter| waiter.0 != task);
            vm.awaits_work.retain(|waiter| waiter.task != task);
        }
    }

    fn vm_mut(&mut self, vm: Option<u32>) -> Option<&mut Vm> {
        self.vms.get_mut(vm? as usize)
    }

    /// A script reaches a point: the task that this wakes.
    ///
    /// If a vCPU reaches it and the recorded target is at work, the vCPU of this VM that has halted
    /// longest is woken. A guest's scheduler places a wakeup on an idle CPU
    /// (`select_idle_sibling`). What is sent to an emulator's thread, or ended no halt, is nothing
    /// that a guest's scheduler could give to another.
    pub(crate) fn reach(
        &mut self,
        edge: Edge,
        vcpu_of: Option<u32>,
        now_ns: u64,
    ) -> Option<TaskNr> {
        let point = self.points.get_mut(edge.0 as usize)?;
        point.reached = point.reached.saturating_add(1);
        point.reached_ns = now_ns;
        let (task, edge, idle_in) = match point.waits {
            Some(waits) if point.is_reached(waits.pass) => (waits.task, edge, waits.idle_in),
            Some(_) => return None,
            None => {
                let vcpu_of = vcpu_of.filter(|_| point.ends_halt_in == vcpu_of);
                let &(task, edge) = self.vm_mut(vcpu_of)?.idle.first()?;
                (task, edge, vcpu_of)
            }
        };
        self.leave(Some(edge), task, idle_in);
        Some(task)
    }
}
