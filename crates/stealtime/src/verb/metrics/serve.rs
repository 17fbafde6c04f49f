//! A page for Prometheus. A scraper that hangs holds one of few connections, for a few seconds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::totals::Totals;
use super::{protobuf, text};
use crate::error::CliError;
use crate::output;

/// Connections at a time. Prometheus needs one.
const CONNECTIONS: usize = 8;
/// Threads that serve.
pub(super) const THREADS: usize = CONNECTIONS + 1;
/// Longest request in bytes.
const REQUEST: usize = 8 << 10;
/// Longest time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are written between looks at the time.
const CHUNK: usize = 16 << 10;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Takes the address.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, CliError> {
    TcpListener::bind(address).map_err(|source| CliError::Listen { address, source })
}

/// Serves until the process ends.
pub(super) fn start(listener: TcpListener, totals: Arc<Mutex<Totals>>) -> Result<(), CliError> {
    let address = listener.local_addr().map_err(CliError::Serve)?;
    output::note(&format!("metrics: http://{address}/metrics"));
    let active = Arc::new(AtomicUsize::new(0));
    let serve = move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => accept(stream, &active, &totals),
                // Out of file descriptors, for one: without a pause this would be a busy loop.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    let thread = std::thread::Builder::new().name("metrics".to_owned());
    thread.spawn(serve).map(drop).map_err(CliError::Serve)
}

/// Answers in a thread of its own, if there are not too many.
fn accept(stream: TcpStream, active: &Arc<AtomicUsize>, totals: &Arc<Mutex<Totals>>) {
    if active.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
        active.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let (counter, totals) = (Arc::clone(active), Arc::clone(totals));
    let serve = move || {
        // Whatever the scraper does, it is its own loss.
        let _ = answer(stream, &totals);
        counter.fetch_sub(1, Ordering::AcqRel);
    };
    let thread = std::thread::Builder::new().name("scrape".to_owned());
    if thread.spawn(serve).is_err() {
        active.fetch_sub(1, Ordering::AcqRel);
    }
}

fn answer(mut stream: TcpStream, totals: &Mutex<Totals>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let request = read(&mut stream, deadline)?;
    let response = respond(&request, totals);
    for chunk in response.chunks(CHUNK) {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        stream.write_all(chunk)?;
    }
    stream.flush()
}

/// Time until the deadline, which is above zero.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    match remaining.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(remaining),
    }
}

/// The head of a request.
fn read(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while request.len() < REQUEST {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        let count = match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        request.extend_from_slice(part.get(..count).unwrap_or_default());
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break;
        }
    }
    Ok(request)
}

/// The whole response to a request.
fn respond(request: &[u8], totals: &Mutex<Totals>) -> Vec<u8> {
    let request = String::from_utf8_lossy(request);
    let mut lines = request.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next());
    let path = target.and_then(|target| target.split('?').next());
    let (status, kind, body) = match (method, path) {
        (_, None) => ("400 Bad Request", PLAIN, "no HTTP request\n".into()),
        ("GET" | "HEAD", Some("/metrics")) => {
            // Only the copy is made under the lock: the collector goes on meanwhile.
            let totals = totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let kind = preferred(lines);
            let page = match kind {
                PROTOBUF => protobuf::encode(&totals),
                OPENMETRICS => text::openmetrics(&totals).into_bytes(),
                _ => text::prometheus(&totals).into_bytes(),
            };
            ("200 OK", kind, page)
        }
        ("GET" | "HEAD", Some("/")) => {
            let page = "stealtime metrics: /metrics has them\n";
            ("200 OK", PLAIN, page.into())
        }
        ("GET" | "HEAD", Some(_)) => ("404 Not Found", PLAIN, "metrics are at /metrics\n".into()),
        (_, Some(_)) => ("405 Method Not Allowed", PLAIN, "GET alone\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut response = head.into_bytes();
    if method != "HEAD" {
        response.extend(body);
    }
    response
}

/// The form that the scraper prefers (RFC 9110, 12.5.1): the first of those with the highest weight.
/// OpenMetrics if it does not care.
fn preferred<'l>(lines: impl Iterator<Item = &'l str>) -> &'static str {
    let headers = lines.filter_map(|line| line.split_once(':'));
    let accepts = headers.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let mut forms = accepts.flat_map(|(_, value)| value.split(',')).peekable();
    if forms.peek().is_none() {
        return OPENMETRICS;
    }
    let mut best = (PROMETHEUS, 0.0);
    for form in forms {
        let mut parts = form.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let kind = match media {
            "application/openmetrics-text" | "*/*" => OPENMETRICS,
            "text/plain" => PROMETHEUS,
            "application/vnd.google.protobuf" => {
                let mut known = parts.clone();
                if !known.any(|part| part == "proto=io.prometheus.client.MetricFamily") {
                    continue;
                }
                PROTOBUF
            }
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        let weight: f64 = weight.unwrap_or(1.0);
        if weight > best.1 {
            best = (kind, weight);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(request: &str) -> String {
        let totals = Mutex::new(Totals::new(1));
        String::from_utf8(respond(request.as_bytes(), &totals)).expect("UTF-8")
    }

    #[test]
    fn requests_have_their_answers() {
        for (request, begin) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            ("GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
            ("", "HTTP/1.1 400 "),
            ("\u{fffd}\u{0}", "HTTP/1.1 400 "),
        ] {
            assert!(response(request).starts_with(begin), "{request:?}");
        }
        let open = response("GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n");
        assert!(open.contains(OPENMETRICS) && open.ends_with("# EOF\n"));
        let text = response("GET /metrics HTTP/1.1\r\naccept: text/plain\r\n\r\n");
        assert!(text.contains(PROMETHEUS) && !text.contains("# EOF"));
        // What Prometheus 2.40 and later sends with native histograms, and without.
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let openmetrics = "application/openmetrics-text;version=1.0.0";
        for (accept, form) in [
            (
                format!("{protobuf},{openmetrics};q=0.8,text/plain;q=0.5,*/*;q=0.1"),
                PROTOBUF,
            ),
            (
                format!("{openmetrics},{protobuf};q=0.5,text/plain;version=0.0.4;q=0.3"),
                OPENMETRICS,
            ),
            (
                "application/vnd.google.protobuf,text/plain;q=0.2".to_owned(),
                PROMETHEUS,
            ),
            ("application/json".to_owned(), PROMETHEUS),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n");
            let totals = Mutex::new(Totals::new(1));
            let response = respond(request.as_bytes(), &totals);
            let response = String::from_utf8_lossy(&response);
            assert!(
                response.contains(&format!("Content-Type: {form}\r\n")),
                "{accept}"
            );
        }
        let head = response("HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"));
    }

    /// 500 VMs with 8 vCPUs, 16 exit reasons and waits of all lengths each.
    fn large_host() -> Totals {
        use stealtime_collector::{Classes, Exits, Sample, Times, Vcpu, Vm};

        // Eight buckets for each power of two from 1 us to 1 s, and numbers with several digits.
        let buckets = || (-160..0).map(|bucket| (bucket, 12_000)).collect();
        let classes = Classes {
            counts: [160_000; 12],
            sum_ns: 123_456_789_012,
        };
        let times = Times {
            guest_ns: 123_456_789_012,
            ..Times::default()
        };
        let vm = |number: i32| {
            let reason = |reason: u64| Exits {
                reason: format!("EXTERNAL_INTERRUPT_{reason}"),
                count: 1000 + reason,
                ns: 1_234_567 * reason,
            };
            Vm {
                vm: format!("instance-{number:08}"),
                pid: Some(1000 + number),
                exits_by_reason: (0..16).map(reason).collect(),
                vcpus: vec![Vcpu::default(); 8],
                times,
                wakeup_classes: classes,
                wakeup_buckets: buckets(),
                stall_classes: classes,
                stall_buckets: buckets(),
                ..Vm::default()
            }
        };
        let sample = Sample {
            vms: (0..500).map(vm).collect(),
            ..Sample::default()
        };
        let mut totals = Totals::new(1000);
        totals.add(&sample, &crate::watched::Cost::default(), |_| None);
        totals
    }

    #[test]
    #[ignore = "a measurement"]
    fn a_large_host_is_scraped_in_little_time() {
        let totals = Mutex::new(large_host());
        // Other work of the machine does not count.
        let cpu_time = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
            let spent = text.split(' ').next().and_then(|ns| ns.parse().ok());
            Duration::from_nanos(spent.unwrap_or(0))
        };
        for accept in [
            "application/openmetrics-text",
            "text/plain",
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily",
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n");
            let spent = || {
                let began = cpu_time();
                let bytes = respond(request.as_bytes(), &totals).len();
                assert!(bytes > 500 * 70 * 40, "{bytes}");
                (cpu_time() - began, bytes)
            };
            // The first one touches the memory of all.
            let (time, bytes) = (0..3).map(|_| spent()).min().expect("three");
            println!("{bytes} bytes take {time:?} of CPU time as {accept}");
            assert!(time < Duration::from_millis(100), "{time:?}");
        }
    }
}
