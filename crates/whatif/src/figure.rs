//! The figures that verdicts rest on, with how each is measured on a replay or a recording.

use stealtime_lab::stats::Estimate;

use crate::gain::{self, Effect, Gain, Word};
use crate::result::{Measured, Variant};

/// The words of a figure that a verdict or a rank rests on.
#[derive(Clone, Copy)]
enum Basis {
    /// Better and worse.
    Change,
    /// Worse alone: a gain counts elsewhere.
    Loss,
    /// None.
    Shown,
}

/// A figure of a variant. Of times more is better: waiting is what is given back.
pub(crate) struct Figure<'v> {
    /// The VM, or `all`, `host`, `host tasks`.
    pub(crate) subject: &'v str,
    pub(crate) vm_guessed: bool,
    pub(crate) quantity: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) predicted: Estimate,
    pub(crate) word: Word,
    basis: Basis,
    /// The change's sign in terms of `value`: -1 where less is counted as given back.
    sign: f64,
    value: Box<dyn Fn(&Measured) -> f64 + 'v>,
}

impl<'v> Figure<'v> {
    fn new(
        effect: &'v Effect,
        quantity: &'static str,
        basis: Basis,
        sign: f64,
        value: impl Fn(&Measured) -> f64 + 'v,
    ) -> Self {
        Self {
            subject: &effect.who,
            vm_guessed: false,
            quantity,
            unit: "ms/s",
            predicted: effect.change,
            word: effect.word,
            basis,
            sign,
            value: Box::new(value),
        }
    }

    /// Whether the verdict or the rank rests on its word.
    pub(crate) const fn decides(&self) -> bool {
        match self.basis {
            Basis::Change => self.word.is_change(),
            Basis::Loss => matches!(self.word, Word::Worse),
            Basis::Shown => false,
        }
    }

    /// What it is of a recording; two of them differ by the change.
    pub(crate) fn measure(&self, measured: &Measured) -> f64 {
        self.sign * (self.value)(measured)
    }
}

/// All figures of a variant: those of each VM, then those of the host.
pub(crate) fn all(variant: &Variant) -> Vec<Figure<'_>> {
    let mut figures = Vec::new();
    for (vm, effects) in variant.gain.vms.iter().enumerate() {
        let mut of_vm = vec![
            Figure::new(
                &effects.given_back,
                "waiting given back",
                Basis::Change,
                -1.0,
                move |m| m.ready(vm),
            ),
            Figure::new(&effects.work, "work", Basis::Loss, 1.0, move |m| m.work(vm)),
        ];
        let mut deltas = variant.changes.iter();
        if let Some(p50) = deltas.find(|delta| delta.wakeup_p50_of() == Some(vm)) {
            of_vm.push(Figure {
                subject: &p50.vm,
                vm_guessed: p50.vm_guessed,
                quantity: "wakeup p50",
                unit: "us",
                predicted: p50.difference.estimate,
                word: p50.word(),
                basis: Basis::Shown,
                sign: 1.0,
                value: Box::new(move |m| m.wakeup_p50(vm)),
            });
        }
        of_vm.push(Figure {
            unit: "us",
            ..Figure::new(
                &effects.wakeup_p99_us,
                "wakeup p99",
                Basis::Change,
                1.0,
                move |m| m.wakeup_p99(vm),
            )
        });
        for figure in &mut of_vm {
            figure.vm_guessed = effects.vm_guessed;
        }
        figures.append(&mut of_vm);
    }
    figures.append(&mut of_host(&variant.gain));
    figures
}

fn of_host(gain: &Gain) -> Vec<Figure<'_>> {
    vec![
        Figure::new(
            &gain.host_tasks,
            "waiting given back",
            Basis::Loss,
            -1.0,
            |m| m.others_ready,
        ),
        Figure::new(&gain.host_tasks_work, "work", Basis::Loss, 1.0, |m| {
            m.others_work
        }),
        Figure::new(
            &gain.given_back,
            "waiting given back",
            Basis::Change,
            -1.0,
            Measured::all_ready,
        ),
        Figure::new(
            &gain.cpu_freed,
            "CPU time freed",
            Basis::Change,
            -1.0,
            Measured::all_in_halts,
        ),
        Figure::new(&gain.work, "work", Basis::Loss, 1.0, Measured::all_work),
        Figure {
            subject: &gain.work.who,
            vm_guessed: false,
            quantity: "net",
            unit: "ms/s",
            predicted: gain.net_change,
            word: gain.net_word,
            basis: Basis::Change,
            sign: -1.0,
            value: Box::new(gain::cost(&gain.work, &gain.host_tasks)),
        },
        Figure {
            unit: "1/s",
            ..Figure::new(&gain.displaced, "switches", Basis::Loss, 1.0, |m| {
                m.displaced
            })
        },
    ]
}
