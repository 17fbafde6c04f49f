//! Recordings of turns with and without a change on a live host, next to the prediction.

use serde::Serialize;
use stealtime_doctor as doctor;
use stealtime_lab::knobs::Setting;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{Estimate, estimate, t95};

use crate::baseline::Baseline;
use crate::error::Error;
use crate::gain::{self, Effect, Word};
use crate::observed::{place, refutes};
use crate::on_host;
use crate::pin;
use crate::plan::{Change, Plan};
use crate::recorded::Recorded;
use crate::result::{Measured, Variant};

/// The quantity that is a latency.
const WAKEUP_P99: &str = "wakeup p99";

/// A figure of the turns. Its values are means over the slices of a turn.
#[derive(Debug, Clone, Serialize)]
pub struct TurnFigure {
    /// The VM; `host tasks`, `host`.
    pub who: String,
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// `waiting`, `work`, `wakeup p99` or `halts`.
    pub quantity: &'static str,
    /// `ms/s` or `us`.
    pub unit: &'static str,
    /// The predicted change; `None` without a prediction.
    pub predicted: Option<Estimate>,
    /// Over the turns without the change.
    pub without: Estimate,
    /// Over the turns with it.
    pub with: Estimate,
    /// The difference of the two, with the interval of equal variances: two pairs of turns have it, too.
    pub seen: Estimate,
    /// The largest difference between turns that should be alike.
    pub spread: f64,
    /// What the change means.
    pub word: Word,
    /// Whether the verdict rests on the word.
    pub decides: bool,
    /// Whether the turns contradict the direction that is predicted; `None` without one.
    pub is_refuted: Option<bool>,
}

/// What turns show of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shown {
    /// Some VM gains and nothing loses.
    Better,
    /// Some gain, some lose.
    Mixed,
    /// Some lose and none gains.
    Worse,
    /// No difference is larger than chance.
    WithinNoise,
}

/// Turns next to the prediction.
#[derive(Debug, Clone, Serialize)]
pub struct SeenTurns {
    /// Pairs of turns that are compared.
    pub pairs: usize,
    /// The figures of each VM, then those of the host.
    pub figures: Vec<TurnFigure>,
    /// What they show.
    pub shown: Shown,
    /// VMs that some slices lack, with the number of slices: their values are those of the others.
    pub missing: Vec<(String, usize)>,
    /// VMs that never wake in some slices, with the number of slices: the latency is of the others.
    pub without_wakeups: Vec<(String, usize)>,
    /// Events that were lost, over all slices.
    pub lost: u64,
}

/// A recorded slice of a turn.
#[derive(Debug)]
struct Slice {
    turn: usize,
    measured: Measured,
    present: Vec<bool>,
    lost: u64,
}

impl Slice {
    /// Whether it tells a figure of a VM.
    fn has(&self, vm: usize, quantity: &str) -> bool {
        self.present[vm] && (quantity != WAKEUP_P99 || self.measured.has_wakeups(vm))
    }
}

/// The slices of all turns, measured by the VMs of the baseline. Even turns are without the change.
#[derive(Debug)]
pub struct RecordedTurns<'b> {
    base: &'b Recorded,
    slices: Vec<Slice>,
}

impl<'b> RecordedTurns<'b> {
    /// No turn yet.
    #[must_use]
    pub fn new(base: &'b Recorded) -> Self {
        Self {
            base,
            slices: Vec::new(),
        }
    }

    /// Adds a slice of a turn. A VM that is not there has no part in its turn's mean.
    pub fn add(&mut self, turn: usize, recorded: &Recorded) {
        let mut places = Vec::new();
        let mut present = Vec::new();
        for vm in 0..self.base.vms.len() {
            let found = place(self.base, vm, recorded, &places);
            present.push(found.is_some());
            // A place beyond all VMs has zeros.
            places.push(found.unwrap_or(usize::MAX));
        }
        self.slices.push(Slice {
            turn,
            measured: recorded.measured_with_halts().of_vms(&places),
            present,
            lost: recorded.answers.source.lost,
        });
    }

    /// Compares the pairs of turns that are whole, with the prediction of a variant. `None` without a pair.
    #[must_use]
    pub fn compare(&self, variant: Option<&Variant>) -> Option<SeenTurns> {
        let turns = self.slices.last()?.turn + 1;
        let pairs = turns / 2;
        let mut figures = Vec::new();
        for (vm, name) in self.base.vms.iter().enumerate() {
            let effects = variant.and_then(|variant| variant.gain.vms.get(vm));
            let vcpus = self.base.answers.vcpus.iter();
            let vcpus = vcpus.filter(|time| time.vm == *name).count();
            let of_vm = |quantity, better, value: &dyn Fn(&Measured) -> f64| {
                let counts = |slice: &Slice| slice.has(vm, quantity);
                let values = |is_changed| values(&self.slices, pairs, is_changed, &counts, value);
                let mut figure = figure(name, quantity, better, vcpus, values)?;
                figure.vm_guessed = self.base.is_guessed(vm);
                Some(figure)
            };
            let waiting = of_vm("waiting", Better::Lower, &|m| m.ready(vm));
            let given_back = effects.map(|effects| &effects.given_back);
            figures.extend(waiting.map(|figure| figure.next_to(given_back, -1.0)));
            let work = of_vm("work", Better::Higher, &|m| m.work(vm));
            let work = work.map(TurnFigure::deciding_as_loss);
            let predicted = effects.map(|effects| &effects.work);
            figures.extend(work.map(|figure| figure.next_to(predicted, 1.0)));
            let p99 = of_vm(WAKEUP_P99, Better::Lower, &|m| m.wakeup_p99(vm));
            let predicted = effects.map(|effects| &effects.wakeup_p99_us);
            figures.extend(p99.map(|figure| figure.next_to(predicted, 1.0)));
        }
        self.add_host(pairs, variant, &mut figures);
        if figures.is_empty() {
            return None;
        }
        Some(SeenTurns {
            pairs,
            shown: Shown::new(&figures),
            figures,
            missing: self.lacking(|slice, vm| !slice.present[vm]),
            without_wakeups: self
                .lacking(|slice, vm| slice.present[vm] && !slice.has(vm, WAKEUP_P99)),
            lost: self.slices.iter().map(|slice| slice.lost).sum(),
        })
    }

    fn add_host(&self, pairs: usize, variant: Option<&Variant>, figures: &mut Vec<TurnFigure>) {
        let vcpus = self.base.answers.vcpus.len();
        let freed = variant.map(|variant| &variant.gain.cpu_freed);
        let halts = halts(&self.slices, pairs, vcpus);
        figures.extend(halts.map(|figure| figure.next_to(freed, -1.0)));
        let tasks = of_host(
            &self.slices,
            pairs,
            vcpus,
            gain::HOST_TASKS,
            "waiting",
            &|m| m.others_ready,
        );
        let tasks = tasks.map(TurnFigure::deciding_as_loss);
        let predicted = variant.map(|variant| &variant.gain.host_tasks);
        figures.extend(tasks.map(|figure| figure.next_to(predicted, -1.0)));
    }

    /// VMs for which slices lack something, with the number of slices.
    fn lacking(&self, lacks: impl Fn(&Slice, usize) -> bool) -> Vec<(String, usize)> {
        let vms = self.base.vms.iter().enumerate();
        let lacking = vms.map(|(vm, name)| {
            let slices = self.slices.iter().filter(|slice| lacks(slice, vm));
            (name.clone(), slices.count())
        });
        lacking.filter(|(_, slices)| *slices > 0).collect()
    }
}

/// A value in each turn of a side: the mean over the slices that count. Pairs of turns without such a slice
/// are left out.
fn values(
    slices: &[Slice],
    pairs: usize,
    is_changed: bool,
    counts: &dyn Fn(&Slice) -> bool,
    value: &dyn Fn(&Measured) -> f64,
) -> Vec<f64> {
    let mean = |turn: usize| {
        let slices = slices.iter();
        let slices = slices.filter(|slice| slice.turn == turn && counts(slice));
        let values = slices.map(|slice| value(&slice.measured));
        Some(estimate(&values.collect::<Vec<f64>>())?.mean)
    };
    let pairs = (0..pairs).filter_map(|pair| Some((mean(2 * pair)?, mean(2 * pair + 1)?)));
    pairs
        .map(|(unchanged, changed)| if is_changed { changed } else { unchanged })
        .collect()
}

/// A figure of the host: all slices count.
fn of_host(
    slices: &[Slice],
    pairs: usize,
    vcpus: usize,
    subject: &str,
    quantity: &'static str,
    value: &dyn Fn(&Measured) -> f64,
) -> Option<TurnFigure> {
    let values = |is_changed| values(slices, pairs, is_changed, &|_| true, value);
    figure(subject, quantity, Better::Lower, vcpus, values)
}

/// CPU time in halts of all VMs. It decides as a loss unless they are spared more waiting, as in predictions.
fn halts(slices: &[Slice], pairs: usize, vcpus: usize) -> Option<TurnFigure> {
    let net = |m: &Measured| m.all_ready() + m.all_in_halts();
    let net = of_host(slices, pairs, vcpus, "host", "net", &net)?;
    let halted = &Measured::all_in_halts;
    let mut halts = of_host(slices, pairs, vcpus, "host", "halts", halted)?;
    halts.decides &= halts.word != Word::Worse || net.word != Word::Better;
    Some(halts)
}

/// The largest difference between values.
fn spread(values: &[f64]) -> f64 {
    let greatest = values.iter().copied().fold(f64::MIN, f64::max);
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    (greatest - least).max(0.0)
}

/// The difference of the means of as many values each, with its 95 % interval by Student's t.
fn change(unchanged: &[f64], changed: &[f64]) -> Option<Estimate> {
    let means = (estimate(unchanged)?, estimate(changed)?);
    let pairs = unchanged.len();
    let squares = |values: &[f64], mean: f64| -> f64 {
        let squares = values.iter().map(|value| (value - mean) * (value - mean));
        squares.sum()
    };
    let sum = squares(unchanged, means.0.mean) + squares(changed, means.1.mean);
    let half_width = t95((2 * pairs).saturating_sub(2)).map(|t| {
        let variance = sum / (2 * pairs - 2) as f64;
        t * (2.0 * variance / pairs as f64).sqrt()
    });
    Some(Estimate {
        mean: means.1.mean - means.0.mean,
        half_width,
        n: pairs,
    })
}

fn figure(
    subject: &str,
    quantity: &'static str,
    better: Better,
    vcpus: usize,
    values: impl Fn(bool) -> Vec<f64>,
) -> Option<TurnFigure> {
    let (unchanged, changed) = (values(false), values(true));
    let observed = change(&unchanged, &changed)?;
    let spread = spread(&unchanged).max(spread(&changed));
    let former = estimate(&unchanged)?;
    let is_latency = quantity == WAKEUP_P99;
    let is_relevant = match is_latency {
        true => gain::is_relevant_latency(observed.mean, former.mean),
        false => gain::is_relevant(observed.mean, vcpus),
    };
    // Two ranges overlap by chance less often than intervals of many figures leave out 0.
    let chance = observed
        .half_width
        .map_or(spread, |width| width.max(spread));
    let word = match (observed.mean.abs() > chance && is_relevant, better) {
        // One pair of turns has no spread.
        _ if unchanged.len() < 2 => Word::Unknown,
        (false, _) => Word::WithinNoise,
        (true, Better::Lower) if observed.mean < 0.0 => Word::Better,
        (true, Better::Higher) if observed.mean > 0.0 => Word::Better,
        (true, _) => Word::Worse,
    };
    Some(TurnFigure {
        who: subject.to_owned(),
        vm_guessed: false,
        quantity,
        unit: if is_latency { "us" } else { "ms/s" },
        predicted: None,
        without: former,
        with: estimate(&changed)?,
        seen: observed,
        spread,
        word,
        decides: word.is_change(),
        is_refuted: None,
    })
}

impl TurnFigure {
    /// With the predicted change; `sign`: -1 where an effect counts less as more given back.
    fn next_to(mut self, effect: Option<&Effect>, sign: f64) -> Self {
        let Some(effect) = effect else {
            return self;
        };
        let predicted = Estimate {
            mean: sign * effect.change.mean,
            ..effect.change
        };
        self.predicted = Some(predicted);
        if effect.word.is_change() && self.word != Word::Unknown {
            self.is_refuted = Some(refutes(predicted, self.seen.mean, self.spread));
        }
        self
    }

    /// More of it is no gain: it counts where it is spared.
    fn deciding_as_loss(mut self) -> Self {
        self.decides = self.word == Word::Worse;
        self
    }
}

impl Shown {
    fn new(figures: &[TurnFigure]) -> Self {
        let deciding = |word| {
            let mut figures = figures.iter();
            figures.any(|figure| figure.decides && figure.word == word)
        };
        match (deciding(Word::Better), deciding(Word::Worse)) {
            (true, false) => Self::Better,
            (true, true) => Self::Mixed,
            (false, true) => Self::Worse,
            (false, false) => Self::WithinNoise,
        }
    }
}

/// The commands that make settings and pins on the recorded host, and those that undo them.
///
/// # Errors
///
/// A pin that names what is not there, or a knob that does not take its value on this host.
pub fn host_changes(
    base: &Baseline,
    settings: &[Setting],
    pins: &[String],
) -> Result<Vec<doctor::Change>, Error> {
    let knobs = settings.iter().cloned().map(Change::Knob);
    let pins = pin::parse_all(pins, &base.recorded)?;
    let pins = pins.into_iter().map(Change::Pin);
    let plan = Plan::new(knobs.chain(pins).collect());
    let former = Plan::default().prepare(base)?.config(base, 0)?;
    Ok(on_host::changes(&plan, base, former))
}

#[cfg(test)]
mod tests {
    use stealtime_replay::predict::{Times, VcpuTimes};

    use super::*;

    #[test]
    fn a_change_counts_beyond_its_interval_and_the_spread() {
        let word = |unchanged: &[f64], changed: &[f64]| {
            let values = |is_changed| {
                if is_changed {
                    changed.to_vec()
                } else {
                    unchanged.to_vec()
                }
            };
            let figure = figure("db", "waiting", Better::Lower, 2, values);
            figure.map(|figure| (figure.word, figure.seen.half_width.map(f64::round)))
        };
        // 4.303 (2 degrees of freedom) * 1 (both deviations are 1) * sqrt(2 / 2)
        let four = Some(4.0);
        assert_eq!(
            word(&[99.3, 100.7], &[89.3, 90.7]),
            Some((Word::Better, four))
        );
        assert_eq!(
            word(&[99.3, 100.7], &[109.3, 110.7]),
            Some((Word::Worse, four))
        );
        let noise = word(&[99.3, 100.7], &[96.3, 97.7]);
        assert_eq!(noise, Some((Word::WithinNoise, four)));
        // Less than 0.1 % of the time of two vCPUs does not matter.
        assert_eq!(
            word(&[3.0, 3.0], &[2.0, 2.0]),
            Some((Word::WithinNoise, Some(0.0)))
        );
        assert_eq!(word(&[100.0], &[50.0]), Some((Word::Unknown, None)));
        assert_eq!(word(&[], &[]), None);
    }

    /// A slice of 1 s with one VM of one vCPU.
    fn slice(turn: usize, ready_ns: u64, in_halts_ns: u64, wakeups: &[u64]) -> Slice {
        let vcpu = VcpuTimes {
            run_ns: 1_000_000_000 - ready_ns,
            ready_ns,
            in_halts_ns,
            wakeups: wakeups.to_vec(),
            ..VcpuTimes::default()
        };
        let times = Times {
            vcpus: vec![vcpu],
            ..Times::default()
        };
        Slice {
            turn,
            measured: Measured::new(&times, 1, 1_000_000_000),
            present: vec![true],
            lost: 0,
        }
    }

    #[test]
    fn slices_without_wakeups_have_no_latency() {
        let counts = |slice: &Slice| slice.has(0, WAKEUP_P99);
        let p99 = |slices: &[Slice], is_changed| {
            values(slices, 1, is_changed, &counts, &|m| m.wakeup_p99(0))
        };
        let late = slice(0, 900_000_000, 0, &[]);
        let woken = slice(0, 500_000_000, 0, &[20_000]);
        let changed = slice(1, 0, 0, &[40_000]);
        let slices = [late, woken, changed];
        assert_eq!(p99(&slices, false), [20.0]);
        assert_eq!(p99(&slices, true), [40.0]);
        // Without a latency as it is there is nothing to compare with.
        let [late, _, changed] = slices;
        assert_eq!(p99(&[late, changed], true).len(), 0);
    }

    #[test]
    fn more_time_in_halts_counts_unless_waiting_that_is_spared_exceeds_it() {
        let decides = |ready_ns: [u64; 2], in_halts_ns: [u64; 2]| {
            let slices = (0..4).map(|turn| {
                let side = turn % 2;
                slice(turn, ready_ns[side], in_halts_ns[side], &[1_000])
            });
            let slices: Vec<Slice> = slices.collect();
            halts(&slices, 2, 1).map(|figure| (figure.word, figure.decides))
        };
        let more = [1_000_000, 40_000_000];
        let spared = decides([900_000_000, 100_000_000], more);
        assert_eq!(spared, Some((Word::Worse, false)));
        let polled = decides([30_000_000, 10_000_000], more);
        assert_eq!(polled, Some((Word::Worse, true)));
        let freed = decides([10_000_000, 10_000_000], [40_000_000, 1_000_000]);
        assert_eq!(freed, Some((Word::Better, true)));
    }
}
