//! A page for Prometheus. A scraper that hangs holds one of few connections, for a few seconds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::text;
use super::totals::Totals;
use crate::error::CliError;
use crate::output;

/// Connections at a time. Prometheus needs one.
const CONNECTIONS: usize = 8;
/// Longest request in bytes.
const REQUEST: usize = 8 << 10;
/// Longest time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are written between looks at the time.
const CHUNK: usize = 16 << 10;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
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
        (_, None) => ("400 Bad Request", PLAIN, "no HTTP request\n".to_owned()),
        ("GET" | "HEAD", Some("/metrics")) => {
            // Only the copy is made under the lock: the collector goes on meanwhile.
            let totals = totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            match accepts_openmetrics(lines) {
                true => ("200 OK", OPENMETRICS, text::openmetrics(&totals)),
                false => ("200 OK", PROMETHEUS, text::prometheus(&totals)),
            }
        }
        ("GET" | "HEAD", Some("/")) => {
            let page = "stealtime metrics: /metrics has them\n".to_owned();
            ("200 OK", PLAIN, page)
        }
        ("GET" | "HEAD", Some(_)) => (
            "404 Not Found",
            PLAIN,
            "metrics are at /metrics\n".to_owned(),
        ),
        (_, Some(_)) => ("405 Method Not Allowed", PLAIN, "GET alone\n".to_owned()),
    };
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        response.push_str(&body);
    }
    response.into_bytes()
}

/// Whether the scraper takes OpenMetrics: it says so, or does not care.
fn accepts_openmetrics<'l>(lines: impl Iterator<Item = &'l str>) -> bool {
    let headers = lines.filter_map(|line| line.split_once(':'));
    let mut accepts = headers
        .filter(|(name, _)| name.eq_ignore_ascii_case("accept"))
        .peekable();
    if accepts.peek().is_none() {
        return true;
    }
    accepts.any(|(_, value)| {
        value.contains("application/openmetrics-text") || value.trim().starts_with("*/*")
    })
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
        let head = response("HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"));
    }
}
