//! `stealtime metrics`.

mod families;
mod form;
mod protobuf;
mod scheduler;
mod serve;
mod text;
mod totals;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};

use crate::error::CliError;
use crate::output;
use crate::verb::top::{interval, long_time};
use crate::watched::{Collection, ROUND, Watched};
use totals::Totals;

/// Time between writes of `--textfile`: node_exporter reads it as often as it is scraped.
const TEXTFILE: Duration = Duration::from_secs(15);

/// Export where guest time goes to Prometheus: seconds by VM and cause, latencies, exits
///
/// docs/metrics.md has the names, units and labels. contrib/ has a dashboard for Grafana, and rules.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo stealtime metrics --listen 127.0.0.1:9725
  sudo stealtime metrics --textfile /var/lib/node_exporter/stealtime.prom
  stealtime metrics --replay trace.dat --textfile -

Needs root and tracefs. The host gets BPF programs, or a tracing instance (--collector), which
go at the end; nothing else is written.
Capabilities are dropped once tracing has begun. The page needs no password: listen on 127.0.0.1, or
put a proxy in front of it.")]
#[command(group = ArgGroup::new("to").required(true).multiple(true).args(["listen", "textfile"]))]
pub(crate) struct Metrics {
    /// Serve http://ADDRESS/metrics; port 0 takes a free one and says which
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,

    /// Write the metrics to this file every 15 s, for node_exporter's textfile collector; `-` is standard
    /// output, once at the end
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,

    /// VMs with metrics of their own; further ones are added up as `(others)`
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_vms: usize,

    /// Time between samples, 100ms at least
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// End after this time: 10s, 5m
    #[arg(long = "for", value_name = "TIME", value_parser = long_time)]
    duration: Option<Duration>,

    #[command(flatten)]
    collection: Collection,

    /// Export this recording instead of the host
    #[arg(long, value_name = "FILE", conflicts_with = "buffer")]
    replay: Option<PathBuf>,

    /// Read the counters of scx_stealtime from this file
    #[arg(long, value_name = "FILE", hide = true)]
    scheduler: Option<PathBuf>,
}

/// A text is no address to listen on.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected an address and a port: 127.0.0.1:9725, [::1]:9725, or 0.0.0.0:9725 for all")]
struct NoAddress;

fn address(text: &str) -> Result<SocketAddr, NoAddress> {
    text.parse().map_err(|_| NoAddress)
}

impl Metrics {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let stop = output::stop_by_interrupt();
        // The address and the file first: what cannot be served is not collected.
        let listener = self.listen.map(serve::bind).transpose()?;
        if let Some(path) = self.file() {
            if let Some(input) = &self.replay {
                output::check_apart(path, input)?;
            }
            output::check(path)?;
        }
        let mut watched = match &self.replay {
            Some(path) => Watched::recording(path, self.interval, false)?,
            None => {
                let threads = if listener.is_some() {
                    serve::THREADS
                } else {
                    0
                };
                Watched::host(self.interval, &self.collection, threads)?
            }
        };
        watched.set_scheduler(self.scheduler.as_deref());
        if self.replay.is_none() {
            // The folder of the file may belong to another user.
            stealtime_live::drop_capabilities(self.textfile.is_some());
        }
        let totals = Arc::new(Mutex::new(Totals::new(self.max_vms)));
        if let Some(listener) = listener {
            serve::start(listener, Arc::clone(&totals))?;
        }
        let collected = self.collect(&mut watched, &totals, stop);
        watched.stop();
        collected?;
        let has_ended = self.replay.is_some() && self.listen.is_some();
        while has_ended && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(ROUND);
        }
        Ok(())
    }

    /// The file of `--textfile`, unless it is standard output.
    fn file(&self) -> Option<&Path> {
        let file = self.textfile.as_deref();
        file.filter(|path| path.as_os_str() != "-")
    }

    fn collect(
        &self,
        watched: &mut Watched,
        totals: &Mutex<Totals>,
        stop: &AtomicBool,
    ) -> Result<(), CliError> {
        let began = Instant::now();
        let mut written = began;
        let mut failure = String::new();
        loop {
            let goes_on = watched.poll()?;
            while let Some((sample, cost)) = watched.sample() {
                let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                totals.add(&sample, &cost, |pid| watched.facts(pid));
                totals.set_scheduler(watched.scheduler());
            }
            let is_over = self.duration.is_some_and(|limit| began.elapsed() >= limit);
            if !goes_on || is_over || stop.load(Ordering::Relaxed) {
                return self.write(totals);
            }
            if watched.is_timed() {
                std::thread::sleep(ROUND);
            }
            if written.elapsed() >= TEXTFILE && self.file().is_some() {
                self.write_or_say(totals, &mut failure);
                written = Instant::now();
            }
        }
    }

    /// Writes the file, or says once why it cannot: the next time may have room. Counters would begin
    /// anew if this process ended.
    fn write_or_say(&self, totals: &Mutex<Totals>, failure: &mut String) {
        let error = self.write(totals).err();
        let now = error.map_or_else(String::new, |error| error.to_string());
        if !now.is_empty() && now != *failure {
            output::note(&format!("stealtime: {now}; it is tried again every 15 s"));
        }
        *failure = now;
    }

    /// Writes the file of `--textfile`, whole or not at all.
    fn write(&self, totals: &Mutex<Totals>) -> Result<(), CliError> {
        let text = {
            let totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
            text::prometheus(&totals)
        };
        match (self.file(), &self.textfile) {
            (Some(path), _) => output::to_file(path, |writer| {
                let path = path.to_owned();
                let failed = |source| CliError::Write { path, source };
                writer.write_all(text.as_bytes()).map_err(failed)
            }),
            (None, Some(_)) => output::to_stdout(|writer| writer.write_all(text.as_bytes())),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        metrics: Metrics,
    }

    #[test]
    fn a_file_that_cannot_be_written_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("later/stealtime.prom");
        let options = [Path::new("metrics"), Path::new("--textfile"), &path];
        let Cli { metrics } = Cli::try_parse_from(options).expect("options");
        let totals = Mutex::new(Totals::new(1));
        let mut failure = String::new();
        metrics.write_or_say(&totals, &mut failure);
        assert!(failure.contains("No such file"), "{failure}");
        std::fs::create_dir(folder.path().join("later")).expect("room");
        metrics.write_or_say(&totals, &mut failure);
        assert_eq!(failure, "");
        let text = std::fs::read_to_string(&path).expect("written");
        assert!(
            text.contains("stealtime_collector_samples_total 0"),
            "{text}"
        );
        // No host has 0 CPUs.
        assert!(!text.contains("\nstealtime_host_cpus "), "{text}");
    }
}
