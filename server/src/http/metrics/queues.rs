//! The metrics that all brokers count together, and those of each queue. Values are in memory, and about a second old.

use queen_engine::{ClusterTotals, Engine, QueueRate};

use super::page::Page;

/// A name, what it means, and where its value is.
type Named<T> = (&'static str, &'static str, fn(&T) -> u64);

pub fn cluster(page: &mut Page, engine: &Engine) {
    let totals = engine.cluster_totals();
    let counters: [Named<ClusterTotals>; 9] = [
        ("queen_cluster_push_requests_total", "Push requests.", |all| all.push_requests),
        ("queen_cluster_push_messages_total", "Messages stored.", |all| all.push_messages),
        ("queen_cluster_pop_requests_total", "Pop requests that name a queue.", |all| all.pop_requests),
        ("queen_cluster_pop_messages_total", "Messages delivered.", |all| all.pop_messages),
        ("queen_cluster_ack_requests_total", "Acknowledgement requests.", |all| all.ack_requests),
        ("queen_cluster_ack_messages_total", "Messages acknowledged.", |all| all.ack_messages),
        (
            "queen_cluster_transactions_total",
            "Transactions, counted once for each queue that they touch.",
            |all| all.transactions,
        ),
        ("queen_cluster_db_errors_total", "Failed database calls.", |all| all.db_errors),
        ("queen_cluster_dlq_total", "Messages that became dead letters.", |all| all.dead_letters),
    ];
    for (name, help, value) in counters {
        page.family(name, "counter", help).sample(&[("scope", "cluster")], value(&totals));
    }
}

/// Rates of the last full minute.
pub fn rates(page: &mut Page, engine: &Engine) {
    let rates = engine.queue_rates();
    let gauges: [Named<QueueRate>; 6] = [
        ("queen_queue_push_messages_per_minute", "Messages stored in the last full minute.", |queue| {
            queue.push_messages
        }),
        ("queen_queue_pop_messages_per_minute", "Messages delivered in the last full minute.", |queue| {
            queue.pop_messages
        }),
        ("queen_queue_pop_empty_per_minute", "Pops in the last full minute that found nothing.", |queue| {
            queue.pop_empty
        }),
        ("queen_queue_ack_per_minute", "Messages acknowledged in the last full minute.", |queue| queue.acks),
        ("queen_queue_transactions_per_minute", "Transactions in the last full minute.", |queue| {
            queue.transactions
        }),
        (
            "queen_queue_parked_consumers",
            "Maximum number of pops that waited at once in the last full minute.",
            |queue| queue.parked,
        ),
    ];
    for (name, help, value) in gauges {
        let mut family = page.family(name, "gauge", help);
        for queue in &rates {
            family.sample(&[("queue", &queue.queue)], value(queue));
        }
    }
    let mut lag = page.family(
        "queen_queue_pop_lag_milliseconds",
        "gauge",
        "Age of messages at delivery, in the last full minute.",
    );
    for queue in rates.iter().filter(|queue| queue.lag_count > 0) {
        let average = queue.lag_us as f64 / queue.lag_count as f64 / 1e3;
        lag.sample(&[("queue", &queue.queue), ("stat", "avg")], average);
        lag.sample(&[("queue", &queue.queue), ("stat", "max")], queue.lag_us_max as f64 / 1e3);
    }
}

/// The sum over all queues, which names none.
pub fn dead_letters(page: &mut Page, engine: &Engine) {
    let all: i64 = engine.gauges().dead_letters.iter().map(|(_, letters)| letters).sum();
    page.gauge("queen_dlq_depth", "Dead letters of all queues.", all);
}

pub fn gauges(page: &mut Page, engine: &Engine) {
    let gauges = engine.gauges();
    let mut pending = page.family("queen_queue_pending", "gauge", "Messages that a group has not read yet.");
    for group in &gauges.groups {
        pending.sample(&[("queue", &group.queue), ("group", &group.group)], group.unread);
    }
    let help = "Age of the oldest message that a group has not read yet.";
    let mut lag = page.family("queen_queue_lag_seconds", "gauge", help);
    for group in &gauges.groups {
        lag.sample(&[("queue", &group.queue), ("group", &group.group)], group.lag_seconds);
    }
    let mut letters = page.family("queen_dlq_depth_by_queue", "gauge", "Dead letters of a queue.");
    for (queue, count) in &gauges.dead_letters {
        letters.sample(&[("queue", queue)], count);
    }
}
