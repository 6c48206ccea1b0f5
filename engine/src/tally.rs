//! Tally: what this broker did to each queue since the last report. Two jobs report it: statistics, which adds the
//! counts to those of the whole queue, and history, which writes a line for every minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Queues with something to report. Beyond that, a new queue is not reported but measured.
const QUEUES_MAX: usize = 100_000;

#[derive(Default)]
pub struct Tally {
    queues: Mutex<HashMap<Arc<str>, Line>>,
}

#[derive(Default)]
struct Line {
    counts: Counts,
    minute: Minute,
}

/// Changes to how much a queue holds, and how much of it each group has read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub appended: i64,
    /// By group, how far its cursors moved in all partitions together.
    pub consumed: HashMap<Arc<str>, i64>,
    /// Something happened that is not counted, so the numbers have to be measured again.
    pub doubt: bool,
}

/// What happened in a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minute {
    pub push_requests: u64,
    pub push_messages: u64,
    pub pop_requests: u64,
    pub pop_messages: u64,
    pub pop_empty: u64,
    pub ack_requests: u64,
    pub ack_success: u64,
    pub ack_failed: u64,
    pub transactions: u64,
    pub dead_letters: u64,
    pub partitions_created: u64,
    /// Over messages when they were delivered: the sum of their ages, how many there were, and the highest age.
    pub lag_us: u64,
    pub lag_count: u64,
    pub lag_us_max: u64,
}

impl Tally {
    /// Called after the commit, for messages that are new in the log.
    pub fn appended<'a>(&self, segments: impl Iterator<Item = (&'a Arc<str>, usize)>) {
        let mut queues = self.lock();
        for (queue, messages) in segments {
            if let Some(line) = line(&mut queues, queue) {
                line.counts.appended += messages as i64;
                line.minute.push_messages += messages as u64;
            }
        }
    }

    /// Called after the commit, for a cursor that moved.
    pub fn consumed(&self, queue: &str, group: &Arc<str>, messages: i64) {
        if messages == 0 {
            return;
        }
        if let Some(line) = line(&mut self.lock(), queue) {
            *line.counts.consumed.entry(group.clone()).or_default() += messages;
        }
    }

    /// Called after the commit, for a lease. The group is then listed, even if its cursor never moves.
    pub fn leased(&self, queue: &str, group: &Arc<str>) {
        if let Some(line) = line(&mut self.lock(), queue) {
            line.counts.consumed.entry(group.clone()).or_default();
        }
    }

    /// The outcome of something that was sent is unknown, or it changed more than is counted.
    pub fn doubt(&self, queue: &str) {
        if let Some(line) = line(&mut self.lock(), queue) {
            line.counts.doubt = true;
        }
    }

    /// Records a request for this queue.
    pub fn record(&self, queue: &str, what: impl FnOnce(&mut Minute)) {
        if let Some(line) = line(&mut self.lock(), queue) {
            what(&mut line.minute);
        }
    }

    /// Takes the counts of up to `most` queues.
    pub fn take_counts(&self, most: usize) -> Vec<(Arc<str>, Counts)> {
        let mut queues = self.lock();
        let told = queues.iter_mut().filter(|(_, line)| line.counts != Counts::default());
        let told = told.take(most).map(|(queue, line)| (queue.clone(), std::mem::take(&mut line.counts)));
        let told = told.collect();
        queues.retain(|_, line| !line.is_empty());
        told
    }

    /// Puts back what could not be reported.
    pub fn give_back(&self, counts: Vec<(Arc<str>, Counts)>) {
        let mut queues = self.lock();
        for (queue, counts) in counts {
            if let Some(line) = line(&mut queues, &queue) {
                line.counts.add(counts);
            }
        }
    }

    pub fn take_minutes(&self) -> Vec<(Arc<str>, Minute)> {
        let mut queues = self.lock();
        let told = queues.iter_mut().filter(|(_, line)| line.minute != Minute::default());
        let told = told.map(|(queue, line)| (queue.clone(), std::mem::take(&mut line.minute)));
        let told = told.collect();
        queues.retain(|_, line| !line.is_empty());
        told
    }

    /// What `take_minutes` would return, summed over all queues.
    pub fn sum_minutes(&self) -> Minute {
        let mut sum = Minute::default();
        self.lock().values().for_each(|line| sum.add(&line.minute));
        sum
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Line>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line<'a>(queues: &'a mut HashMap<Arc<str>, Line>, queue: &str) -> Option<&'a mut Line> {
    if !queues.contains_key(queue) {
        if queues.len() >= QUEUES_MAX {
            return None;
        }
        queues.insert(queue.into(), Line::default());
    }
    queues.get_mut(queue)
}

impl Line {
    fn is_empty(&self) -> bool {
        self.counts == Counts::default() && self.minute == Minute::default()
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.appended += other.appended;
        self.doubt |= other.doubt;
        for (group, messages) in other.consumed {
            *self.consumed.entry(group).or_default() += messages;
        }
    }
}

impl Minute {
    pub fn add(&mut self, other: &Self) {
        self.push_requests += other.push_requests;
        self.push_messages += other.push_messages;
        self.pop_requests += other.pop_requests;
        self.pop_messages += other.pop_messages;
        self.pop_empty += other.pop_empty;
        self.ack_requests += other.ack_requests;
        self.ack_success += other.ack_success;
        self.ack_failed += other.ack_failed;
        self.transactions += other.transactions;
        self.dead_letters += other.dead_letters;
        self.partitions_created += other.partitions_created;
        self.lag_us += other.lag_us;
        self.lag_count += other.lag_count;
        self.lag_us_max = self.lag_us_max.max(other.lag_us_max);
    }

    pub fn delivered(&mut self, messages: u64, age_us: u64) {
        self.pop_messages += messages;
        self.lag_us += age_us * messages;
        self.lag_count += messages;
        self.lag_us_max = self.lag_us_max.max(age_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_told_once_and_what_is_given_back_again() {
        let tally = Tally::default();
        let (queue, group): (Arc<str>, Arc<str>) = ("orders".into(), "billing".into());
        tally.appended([(&queue, 3), (&queue, 2)].into_iter());
        tally.consumed(&queue, &group, 4);
        tally.record(&queue, |minute| minute.push_requests += 1);
        let counts = tally.take_counts(10);
        assert_eq!((counts[0].1.appended, counts[0].1.consumed[&group]), (5, 4));
        assert!(tally.take_counts(10).is_empty());
        tally.appended([(&queue, 1)].into_iter());
        tally.give_back(counts);
        assert_eq!(tally.take_counts(10)[0].1.appended, 6);
        let minutes = tally.take_minutes();
        assert_eq!((minutes[0].1.push_requests, minutes[0].1.push_messages), (1, 6));
        assert!(tally.take_minutes().is_empty());
        assert!(tally.lock().is_empty(), "a queue with nothing to tell costs nothing");
    }

    #[test]
    fn no_more_than_asked_for_are_taken_and_the_rest_stays() {
        let tally = Tally::default();
        for queue in ["a", "b", "c"] {
            tally.doubt(queue);
        }
        assert_eq!(tally.take_counts(2).len(), 2);
        assert_eq!(tally.take_counts(2).len(), 1);
    }

    #[test]
    fn ages_are_weighed_by_messages() {
        let mut minute = Minute::default();
        minute.delivered(2, 10);
        minute.delivered(1, 40);
        assert_eq!((minute.pop_messages, minute.lag_us, minute.lag_count, minute.lag_us_max), (3, 60, 3, 40));
    }
}
