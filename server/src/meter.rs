//! Counts requests by route and status, and measures how long they took. It costs two additions per request, no lock and no
//! allocation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use matchit::Router;
use queen_engine::{Distribution, Histogram, MICROSECONDS};

/// Classes of status codes. There is no 1xx.
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];
/// Requests without a route.
const OTHER: &str = "other";
/// The minimum time over which a rate is measured, so that readers do not disturb each other.
const RATE_OVER: Duration = Duration::from_secs(1);

pub struct Meter {
    started: Instant,
    /// Path to position in `routes`, with the matcher that axum uses.
    templates: Router<usize>,
    routes: Vec<(&'static str, [Histogram; CLASSES.len()])>,
    connections: AtomicU64,
    rates: Mutex<Rates>,
}

/// The counters at the last read, and the rates until then.
struct Rates {
    at: Instant,
    requests: u64,
    messages: u64,
    per_second: (f64, f64),
}

/// A request in progress. It is not counted if its client goes away.
pub struct Measure {
    meter: Arc<Meter>,
    route: usize,
    begun: Instant,
}

/// An open connection, until it is dropped.
pub struct Open<'a>(&'a Meter);

impl Meter {
    pub fn new(paths: Vec<&'static str>) -> Self {
        let started = Instant::now();
        let mut templates = Router::new();
        for (route, path) in paths.iter().enumerate() {
            templates.insert(*path, route).expect("axum takes the same paths");
        }
        let histograms = || CLASSES.map(|_| Histogram::new(&MICROSECONDS));
        Self {
            started,
            templates,
            routes: paths.into_iter().chain([OTHER]).map(|path| (path, histograms())).collect(),
            connections: AtomicU64::new(0),
            rates: Mutex::new(Rates { at: started, requests: 0, messages: 0, per_second: (0.0, 0.0) }),
        }
    }

    pub fn begin(self: &Arc<Self>, path: &str) -> Measure {
        let route = self.templates.at(path).map_or(self.routes.len() - 1, |found| *found.value);
        Measure { meter: self.clone(), route, begun: Instant::now() }
    }

    pub fn connected(&self) -> Open<'_> {
        self.connections.fetch_add(1, Relaxed);
        Open(self)
    }

    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn requests(&self) -> u64 {
        self.routes.iter().flat_map(|(_, classes)| classes).map(Histogram::count).sum()
    }

    /// Durations by route and class, in microseconds, of routes that were requested.
    pub fn spreads(&self) -> impl Iterator<Item = (&'static str, &'static str, Distribution)> + '_ {
        let classes = |(route, classes): &'_ (&'static str, [Histogram; CLASSES.len()])| {
            let route = *route;
            let read = classes.each_ref().map(Histogram::read);
            CLASSES.into_iter().zip(read).map(move |(class, spread)| (route, class, spread))
        };
        self.routes.iter().flat_map(classes).filter(|(_, _, spread)| spread.count() > 0)
    }

    /// Requests and messages per second since the last call.
    pub fn rates(&self, requests: u64, messages: u64) -> (f64, f64) {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).read(Instant::now(), requests, messages)
    }
}

impl Rates {
    fn read(&mut self, now: Instant, requests: u64, messages: u64) -> (f64, f64) {
        let passed = now - self.at;
        if passed >= RATE_OVER {
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / passed.as_secs_f64();
            self.per_second = (rate(requests, self.requests), rate(messages, self.messages));
            (self.at, self.requests, self.messages) = (now, requests, messages);
        }
        self.per_second
    }
}

impl Measure {
    pub fn end(self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(2, 5) - 2;
        self.meter.routes[self.route].1[class].add(self.begun.elapsed().as_micros() as u64);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_by_route_and_class_and_strangers_together() {
        let meter = Arc::new(Meter::new(vec!["/a", "/a/{id}"]));
        for (path, status) in
            [("/a", 200), ("/a/7", 404), ("/a/8", 404), ("/b", 404), ("/c", 500), ("/a", 204)]
        {
            meter.begin(path).end(StatusCode::from_u16(status).unwrap());
        }
        let mut seen: Vec<_> =
            meter.spreads().map(|(route, class, spread)| (route, class, spread.count())).collect();
        seen.sort_unstable();
        let expected = [("/a", "2xx", 2), ("/a/{id}", "4xx", 2), ("other", "4xx", 1), ("other", "5xx", 1)];
        assert_eq!(seen, expected);
        assert_eq!(meter.requests(), 6);
    }

    #[test]
    fn every_route_is_counted_under_its_own_path() {
        let paths = crate::routes::paths();
        let meter = Arc::new(Meter::new(paths.clone()));
        for path in &paths {
            meter.begin(&path.replace(['{', '}'], "~")).end(StatusCode::OK);
        }
        let seen: Vec<_> = meter.spreads().map(|(route, _, spread)| (route, spread.count())).collect();
        assert_eq!(seen, paths.iter().map(|path| (*path, 1)).collect::<Vec<_>>());
    }

    #[test]
    fn a_rate_is_that_of_the_time_since_the_last_look() {
        let start = Instant::now();
        let mut rates = Rates { at: start, requests: 0, messages: 0, per_second: (0.0, 0.0) };
        assert_eq!(rates.read(start + Duration::from_secs(2), 20, 200), (10.0, 100.0));
        assert_eq!(
            rates.read(start + Duration::from_millis(2_100), 90, 900),
            (10.0, 100.0),
            "too early to tell"
        );
        assert_eq!(rates.read(start + Duration::from_secs(4), 24, 200), (2.0, 0.0));
    }

    #[test]
    fn connections_are_those_that_are_open() {
        let meter = Meter::new(vec!["/"]);
        let (first, second) = (meter.connected(), meter.connected());
        assert_eq!(meter.connections(), 2);
        drop(first);
        assert_eq!(meter.connections(), 1);
        drop(second);
        assert_eq!(meter.connections(), 0);
    }
}
