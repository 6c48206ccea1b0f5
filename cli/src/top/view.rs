//! Computes what to show: rates between two samples, most important rows first. Pure.

use serde::Serialize;

use super::sample::{Broker, LANES, Lane, Sample, Shared, State};

/// More rows would not fit on a screen.
const LIST_MAX: usize = 10;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    pub messages: Messages,
    pub brokers: Vec<BrokerView>,
    /// Sum of all brokers that respond.
    pub lanes: Vec<LaneView>,
    /// Longest waiting first.
    pub groups: Vec<GroupView>,
    /// Most unread messages first.
    pub queues: Vec<QueueView>,
    /// Why the numbers are stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Messages {
    pub queues: u64,
    pub partitions: u64,
    pub stored: u64,
    pub pending: u64,
    pub leased: u64,
    pub dead_letters: u64,
    /// Deferred operations that are not executed yet.
    pub deferred: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerView {
    pub url: String,
    pub server: String,
    pub version: String,
    pub up: bool,
    /// Whether the latest attempt to reach its database succeeded.
    pub database: bool,
    /// Why it is not up.
    pub problem: Option<String>,
    pub uptime_seconds: f64,
    /// `None` after only one sample since its start.
    pub requests_per_second: Option<f64>,
    /// Percent of one core.
    pub cpu_percent: Option<f64>,
    pub memory_bytes: u64,
    pub connections: u64,
    pub connections_busy: u64,
    pub waiting: u64,
}

#[derive(Debug, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LaneView {
    pub lane: &'static str,
    pub items_per_second: Option<f64>,
    pub flights_per_second: Option<f64>,
    pub ms_per_flight: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupView {
    pub group: String,
    pub queue: String,
    pub unread: u64,
    /// Growth per second; negative while the group catches up.
    pub unread_per_second: Option<f64>,
    pub waiting_seconds: f64,
    pub state: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    pub queue: String,
    pub partitions: u64,
    pub stored: u64,
    pub pending: u64,
    pub leased: u64,
}

impl View {
    /// Rates since an earlier sample.
    pub fn of(before: Option<&Sample>, now: &Sample) -> Self {
        let seconds = before.map_or(0.0, |before| now.at - before.at);
        let earlier = |broker: &Broker| before.and_then(|before| state_of(before, &broker.url));
        Self {
            messages: Messages::from(&now.all),
            brokers: now.brokers.iter().map(|broker| broker_view(earlier(broker), broker, seconds)).collect(),
            lanes: (0..LANES.len()).map(|index| lane_view(index, before, now, seconds)).collect(),
            groups: groups(before, now, seconds),
            queues: queues(now),
            problem: None,
        }
    }
}

/// Per second. `None` if no time has passed, or if the counter was reset.
fn rate(before: u64, now: u64, seconds: f64) -> Option<f64> {
    let more = now.checked_sub(before)?;
    (seconds > 0.0).then(|| more as f64 / seconds)
}

fn state_of<'a>(sample: &'a Sample, url: &str) -> Option<&'a State> {
    sample.brokers.iter().find(|broker| broker.url == url)?.state.as_ref().ok()
}

fn broker_view(before: Option<&State>, broker: &Broker, seconds: f64) -> BrokerView {
    let none = State::default();
    let now = broker.state.as_ref().unwrap_or(&none);
    let since = |count: fn(&State) -> u64| before.and_then(|before| rate(count(before), count(now), seconds));
    let up = broker.state.is_ok();
    BrokerView {
        url: broker.url.clone(),
        server: now.server.clone(),
        version: now.version.clone(),
        up,
        database: now.database,
        problem: broker.state.as_ref().err().cloned(),
        uptime_seconds: now.uptime,
        requests_per_second: since(|state| state.requests).filter(|_| up),
        cpu_percent: since(|state| state.cpu_us).filter(|_| up).map(|micros| micros / 1e4),
        memory_bytes: now.memory,
        connections: now.connections,
        connections_busy: now.connections_busy,
        waiting: now.waiting,
    }
}

/// Sum over all brokers that are in both samples and were not restarted in between.
fn lane_view(index: usize, before: Option<&Sample>, now: &Sample, seconds: f64) -> LaneView {
    let mut sum: Option<Lane> = None;
    for broker in &now.brokers {
        let (Some(before), Ok(now)) =
            (before.and_then(|before| state_of(before, &broker.url)), &broker.state)
        else {
            continue;
        };
        let (old, new) = (before.lanes[index], now.lanes[index]);
        let (Some(flights), Some(items)) =
            (new.flights.checked_sub(old.flights), new.items.checked_sub(old.items))
        else {
            continue;
        };
        let sum = sum.get_or_insert_default();
        sum.flights += flights;
        sum.items += items;
        sum.busy_ms += (new.busy_ms - old.busy_ms).max(0.0);
    }
    let per_second = |count: fn(&Lane) -> u64| sum.as_ref().and_then(|sum| rate(0, count(sum), seconds));
    LaneView {
        lane: LANES[index],
        items_per_second: per_second(|lane| lane.items),
        flights_per_second: per_second(|lane| lane.flights),
        ms_per_flight: sum.filter(|sum| sum.flights > 0).map(|sum| sum.busy_ms / sum.flights as f64),
    }
}

fn groups(before: Option<&Sample>, now: &Sample, seconds: f64) -> Vec<GroupView> {
    let mut groups: Vec<GroupView> = now
        .groups
        .iter()
        .map(|group| {
            let earlier = before.and_then(|before| {
                before.groups.iter().find(|it| it.name == group.name && it.queue == group.queue)
            });
            let change = earlier.map(|earlier| group.unread as f64 - earlier.unread as f64);
            GroupView {
                group: group.name.clone(),
                queue: group.queue.clone(),
                unread: group.unread,
                unread_per_second: change.filter(|_| seconds > 0.0).map(|change| change / seconds),
                waiting_seconds: group.waiting_seconds,
                state: group.state.to_lowercase(),
            }
        })
        .collect();
    groups.sort_by(|one, other| {
        other.waiting_seconds.total_cmp(&one.waiting_seconds).then(other.unread.cmp(&one.unread))
    });
    groups.truncate(LIST_MAX);
    groups
}

fn queues(now: &Sample) -> Vec<QueueView> {
    let mut queues: Vec<_> = now.queues.iter().collect();
    queues.sort_by_key(|queue| std::cmp::Reverse((queue.pending, queue.leased, queue.stored)));
    let view = |queue: &super::sample::Queue| QueueView {
        queue: queue.name.clone(),
        partitions: queue.partitions,
        stored: queue.stored,
        pending: queue.pending,
        leased: queue.leased,
    };
    queues.into_iter().take(LIST_MAX).map(view).collect()
}

impl From<&Shared> for Messages {
    fn from(all: &Shared) -> Self {
        Self {
            queues: all.queues,
            partitions: all.partitions,
            stored: all.stored,
            pending: all.pending,
            leased: all.leased,
            dead_letters: all.dead_letters,
            deferred: all.deferred,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::sample::{Group, Queue};
    use super::*;

    fn broker(url: &str, requests: u64, items: u64) -> Broker {
        let lane = Lane { flights: items / 10, items, busy_ms: items as f64 / 5.0 };
        let state = State {
            requests,
            cpu_us: requests * 1_000,
            database: true,
            lanes: [lane; 5],
            ..State::default()
        };
        Broker { url: url.to_owned(), state: Ok(state) }
    }

    fn down(url: &str) -> Broker {
        Broker { url: url.to_owned(), state: Err("connection refused".to_owned()) }
    }

    fn group(name: &str, unread: u64, waiting_seconds: f64) -> Group {
        Group {
            name: name.to_owned(),
            queue: "orders".to_owned(),
            unread,
            waiting_seconds,
            state: "Stable".to_owned(),
        }
    }

    /// Two seconds apart.
    pub fn samples() -> (Sample, Sample) {
        let queue =
            |pending| Queue { name: "orders".to_owned(), partitions: 3, stored: 100, pending, leased: 1 };
        let before = Sample {
            at: 10.0,
            brokers: vec![broker("http://a", 100, 1_000), broker("http://b", 7, 70)],
            groups: vec![group("billing", 100, 3.0)],
            queues: vec![queue(5)],
            ..Sample::default()
        };
        let now = Sample {
            at: 12.0,
            brokers: vec![broker("http://a", 300, 2_000), down("http://b")],
            groups: vec![group("fast", 1, 0.1), group("billing", 60, 4.0)],
            queues: vec![queue(9), Queue { name: "busy".to_owned(), pending: 10, ..queue(0) }],
            ..Sample::default()
        };
        (before, now)
    }

    #[test]
    fn a_rate_is_what_two_looks_differ_by() {
        assert_eq!(rate(100, 300, 2.0), Some(100.0));
        assert_eq!((rate(100, 300, 0.0), rate(300, 100, 2.0)), (None, None));
    }

    #[test]
    fn brokers_and_lanes_have_the_rates_of_those_that_answer() {
        let (before, now) = samples();
        let view = View::of(Some(&before), &now);
        assert_eq!(
            (view.brokers[0].requests_per_second, view.brokers[0].cpu_percent),
            (Some(100.0), Some(10.0))
        );
        assert_eq!((view.brokers[1].up, view.brokers[1].requests_per_second), (false, None));
        let push = LaneView {
            lane: "push",
            items_per_second: Some(500.0),
            flights_per_second: Some(50.0),
            ms_per_flight: Some(2.0),
        };
        assert_eq!(view.lanes[0], push);
    }

    #[test]
    fn a_broker_that_started_in_between_is_left_out_until_the_next_look() {
        let (before, mut now) = samples();
        now.brokers = vec![broker("http://a", 3, 10)];
        let view = View::of(Some(&before), &now);
        assert_eq!((view.brokers[0].requests_per_second, view.lanes[0].items_per_second), (None, None));
    }

    #[test]
    fn the_first_look_has_no_rates() {
        let (before, _) = samples();
        let view = View::of(None, &before);
        assert_eq!((view.brokers[0].requests_per_second, view.lanes[0].flights_per_second), (None, None));
        assert_eq!(view.groups[0].unread_per_second, None);
    }

    #[test]
    fn who_waits_longest_and_what_is_fullest_comes_first() {
        let (before, now) = samples();
        let view = View::of(Some(&before), &now);
        let groups: Vec<_> =
            view.groups.iter().map(|group| (group.group.as_str(), group.unread_per_second)).collect();
        assert_eq!(groups, [("billing", Some(-20.0)), ("fast", None)]);
        let queues: Vec<_> = view.queues.iter().map(|queue| queue.queue.as_str()).collect();
        assert_eq!(queues, ["busy", "orders"]);
    }
}
