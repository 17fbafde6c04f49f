//! Finding and reading recordings.

use std::path::{Path, PathBuf};

use stealtime_analysis::{Analysis, Answers, Options};

/// The folder of recordings, if the variable names one.
pub(crate) fn traces() -> Option<PathBuf> {
    std::env::var_os("STEALTIME_TRACES").map(PathBuf::from)
}

/// The answers to one trace file.
pub(crate) fn answers(path: &Path, options: Options) -> Answers {
    let mut source = stealtime_trace::open(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let mut analysis = Analysis::new(options);
    while let Some(event) = source
        .next_event()
        .unwrap_or_else(|e| panic!("{path:?}: {e}"))
    {
        analysis.event(&event, source.names());
    }
    analysis.finish(source.names())
}

/// A thread's VM and id, of the vCPU threads that `side/threads.txt` lists.
pub(crate) fn threads(folder: &Path) -> Vec<(String, i32)> {
    let text = std::fs::read_to_string(folder.join("side/threads.txt")).unwrap();
    text.lines()
        .filter(|line| line.contains("/KVM"))
        .map(|line| {
            let vm = line.split(' ').next().unwrap().to_owned();
            let (_, rest) = line.split_once(" tid=").unwrap();
            (vm, rest.split(' ').next().unwrap().parse().unwrap())
        })
        .collect()
}

/// What must hold of all answers.
pub(crate) fn check(answers: &Answers) {
    for vcpu in &answers.vcpus {
        let waits = vcpu.preempted_ns + vcpu.wake_wait_ns;
        assert_eq!(
            vcpu.span_ns,
            vcpu.on_cpu_ns + vcpu.halt_ns + waits,
            "{vcpu:?}"
        );
        let rows = answers.ready.iter();
        let mine = rows.filter(|row| row.vm == vcpu.vm && row.vcpu == vcpu.vcpu);
        assert_eq!(mine.map(|row| row.ns).sum::<u64>(), waits, "{vcpu:?}");
    }
}
