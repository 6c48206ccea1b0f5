//! Tracks the outcome of a batch's messages, and computes the acknowledgements to send. Pure.

use crate::ack::Status;

/// Initial capacity: messages per partition in a batch.
const USUAL: usize = 16;

/// # Invariants
/// - A message behind a failure in its partition is never reported as completed.
/// - After [`rest`](Self::rest), every partition is completed to its end, released, or was lost before.
pub struct Settlement {
    partitions: Vec<Partition>,
    /// Partition of each message, and its index there.
    places: Vec<(usize, usize)>,
    auto_ack: bool,
}

struct Partition {
    /// Indexes in the batch, in partition order.
    messages: Vec<usize>,
    states: Vec<State>,
    /// Number of reported messages.
    told: usize,
    /// Index of the first message without success.
    bad: Option<usize>,
    /// The lease is lost.
    lost: bool,
}

#[derive(Clone, PartialEq)]
enum State {
    Open,
    Done,
    Failed(String),
    /// The handler has returned it for redelivery.
    Released,
}

/// One acknowledgement: a message and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub index: usize,
    pub status: Status,
    pub error: Option<String>,
}

impl Settlement {
    /// For messages in delivery order, given by their partitions.
    pub fn new<'a>(partitions: impl IntoIterator<Item = &'a str>, auto_ack: bool) -> Self {
        let partitions = partitions.into_iter();
        let (mut names, mut places) = (Vec::new(), Vec::with_capacity(partitions.size_hint().0));
        let mut known: Vec<Partition> = Vec::new();
        for (index, name) in partitions.enumerate() {
            // Messages are grouped by partition, so it is nearly always the last one.
            let number = names.iter().rposition(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                let (messages, states) = (Vec::with_capacity(USUAL), Vec::with_capacity(USUAL));
                known.push(Partition { messages, states, told: 0, bad: None, lost: false });
                known.len() - 1
            });
            places.push((number, known[number].messages.len()));
            known[number].messages.push(index);
            known[number].states.push(State::Open);
        }
        Self { partitions: known, places, auto_ack }
    }

    /// Whether to handle a message: no earlier one of its partition has failed, and the lease is not lost.
    pub fn wants(&self, index: usize) -> bool {
        let (partition, place) = self.places[index];
        let partition = &self.partitions[partition];
        !partition.lost && partition.bad.is_none_or(|bad| place < bad)
    }

    /// The broker refused an acknowledgement of this message: its partition is lost, and nothing more is reported for it.
    pub fn lose(&mut self, index: usize) {
        let (partition, _) = self.places[index];
        self.partitions[partition].lost = true;
    }

    pub fn complete(&mut self, index: usize) {
        self.set(index, State::Done);
    }

    pub fn fail(&mut self, index: usize, error: String) {
        self.set(index, State::Failed(error));
    }

    pub fn release(&mut self, index: usize) {
        self.set(index, State::Released);
    }

    fn set(&mut self, index: usize, state: State) {
        let (partition, place) = self.places[index];
        let partition = &mut self.partitions[partition];
        if state != State::Done {
            partition.bad = Some(partition.bad.map_or(place, |bad| bad.min(place)));
        }
        partition.states[place] = state;
    }

    pub fn is_open(&self, index: usize) -> bool {
        let (partition, place) = self.places[index];
        self.partitions[partition].states[place] == State::Open
    }

    /// Completed and unreported: the last message of each partition, which includes those before it.
    pub fn done(&mut self) -> Vec<Told> {
        let auto_ack = self.auto_ack;
        self.partitions.iter_mut().filter_map(|partition| partition.done(auto_ack)).collect()
    }

    /// Everything left to report: completions, failures, and the first unhandled message of a partition, which gives back the
    /// lease. (Also after a failure: when it becomes a dead letter, the lease stays.) For a partition that the handler has released,
    /// nothing else is reported.
    ///
    /// `acked`, if handlers acknowledge themselves: whether each message was acknowledged. A failure that becomes a dead letter
    /// completes everything before it; if some of that is not acknowledged yet, the failed message is given back instead.
    pub fn rest(&mut self, acked: &[bool]) -> Vec<Told> {
        let auto_ack = self.auto_ack;
        self.partitions.iter_mut().flat_map(|partition| partition.rest(auto_ack, acked)).collect()
    }
}

impl Partition {
    fn done(&mut self, auto_ack: bool) -> Option<Told> {
        if self.lost {
            return None;
        }
        let done = self.states.iter().take_while(|state| **state == State::Done).count();
        let news = auto_ack && done > self.told;
        self.told = done.max(self.told);
        news.then(|| Told { index: self.messages[done - 1], status: Status::Completed, error: None })
    }

    fn rest(&mut self, auto_ack: bool, acked: &[bool]) -> Vec<Told> {
        if self.lost {
            return Vec::new();
        }
        if let Some(released) = self.states.iter().position(|state| *state == State::Released) {
            let behind = self.messages.get(released + 1).filter(|_| self.told <= released);
            self.told = self.states.len();
            let told = |&index: &usize| Told { index, status: Status::Retry, error: None };
            return behind.map(told).into_iter().collect();
        }
        let mut rest: Vec<Told> = self.done(auto_ack).into_iter().collect();
        let is_held = |(state, index): (&State, &usize)| {
            *state == State::Done && !acked.get(*index).is_some_and(|&acked| acked)
        };
        let held = match auto_ack {
            true => None,
            false => self.states.iter().zip(&self.messages).position(is_held),
        };
        for (place, state) in self.states.iter().enumerate().skip(self.told) {
            let index = self.messages[place];
            match state {
                State::Failed(_) if held.is_some_and(|held| held < place) => {
                    rest.push(Told { index, status: Status::Retry, error: None });
                    break;
                }
                State::Failed(error) => {
                    rest.push(Told { index, status: Status::Failed, error: Some(error.clone()) });
                }
                State::Open => {
                    rest.push(Told { index, status: Status::Retry, error: None });
                    break;
                }
                State::Done | State::Released => {}
            }
        }
        self.told = self.states.len();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(partitions: &'static str) -> Settlement {
        Settlement::new(partitions.split(' '), true)
    }

    fn words(told: &[Told]) -> String {
        let word = |told: &Told| {
            let status = match told.status {
                Status::Completed => "done",
                Status::Failed => "failed",
                Status::Retry => "retry",
                Status::DeadLetter => "dead",
            };
            format!("{}{status}", told.index)
        };
        told.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_last_message_of_each_partition_speaks_for_all_of_them() {
        let mut batch = of("a a b b a");
        (0..5).for_each(|index| batch.complete(index));
        assert_eq!(words(&batch.rest(&[])), "4done 3done");
        assert_eq!(batch.rest(&[]), []);
    }

    #[test]
    fn a_failure_ends_its_partition_and_no_other() {
        let mut batch = of("a a a b b");
        batch.complete(0);
        batch.fail(1, "broken".to_owned());
        assert!(!batch.wants(2) && batch.wants(3));
        batch.complete(3);
        batch.complete(4);
        assert_eq!(words(&batch.rest(&[])), "0done 1failed 2retry 4done");
    }

    #[test]
    fn what_was_not_handled_is_given_back_by_its_first_message() {
        let mut batch = of("a a b b");
        batch.complete(0);
        assert_eq!(words(&batch.rest(&[])), "0done 1retry 2retry");
    }

    #[test]
    fn completions_can_be_reported_early_and_only_once() {
        let mut batch = of("a a a b");
        assert_eq!(batch.done(), []);
        batch.complete(0);
        batch.complete(1);
        assert_eq!(words(&batch.done()), "1done");
        assert_eq!(batch.done(), []);
        batch.complete(2);
        assert_eq!(words(&batch.rest(&[])), "2done 3retry");
    }

    #[test]
    fn a_handler_that_acknowledges_by_itself_is_not_corrected() {
        let mut batch = Settlement::new(["a", "a", "b", "b"], false);
        batch.complete(0);
        batch.complete(1);
        batch.release(2);
        assert!(!batch.wants(3));
        assert_eq!(batch.done(), []);
        assert_eq!(words(&batch.rest(&[])), "3retry");
    }

    #[test]
    fn a_failure_takes_nothing_along_that_its_handler_has_yet_to_acknowledge() {
        let told = |acked: &[bool]| {
            let mut batch = Settlement::new(["a", "a", "a"], false);
            batch.complete(0);
            batch.fail(1, "broken".to_owned());
            words(&batch.rest(acked))
        };
        assert_eq!(told(&[false, false, false]), "1retry");
        assert_eq!(told(&[true, false, false]), "1failed 2retry");
    }

    #[test]
    fn only_the_rest_is_released_behind_what_a_handler_returned() {
        let mut batch = of("a a a a b");
        batch.complete(0);
        batch.release(1);
        batch.complete(2);
        batch.complete(3);
        batch.fail(4, "no".to_owned());
        assert_eq!(words(&batch.rest(&[])), "2retry 4failed");
        assert_eq!(batch.rest(&[]), []);
        let mut last = of("a a");
        last.complete(0);
        last.release(1);
        assert_eq!(last.rest(&[]), []);
    }

    #[test]
    fn a_partition_that_is_lost_is_left_alone_and_others_are_not() {
        let mut batch = of("a a a b b");
        batch.complete(0);
        assert_eq!(words(&batch.done()), "0done");
        batch.lose(0);
        assert!(!batch.wants(1) && batch.wants(3));
        batch.complete(3);
        assert_eq!(words(&batch.done()), "3done");
        assert_eq!(words(&batch.rest(&[])), "4retry");
    }

    #[test]
    fn a_batch_that_fails_as_a_whole_fails_in_every_message() {
        let mut batch = of("a a b");
        (0..3).for_each(|index| batch.fail(index, "no".to_owned()));
        assert_eq!(words(&batch.rest(&[])), "0failed 1failed 2failed");
    }

    proptest! {
        #[test]
        fn nothing_behind_a_failure_is_done_and_nothing_stays_leased(
            partitions in prop::collection::vec(0usize..4, 1..30), fates in prop::collection::vec(0u8..6, 30),
            early in prop::collection::vec(any::<bool>(), 30), together in any::<bool>()
        ) {
            let names = ["a", "b", "c", "d"];
            let mut batch = Settlement::new(partitions.iter().map(|&number| names[number]), true);
            let (mut told, mut released) = (Vec::new(), [None; 4]);
            let mut stopped = false;
            for index in 0..partitions.len() {
                stopped |= fates[index] == 3 && index > 20;
                // A handler of a whole batch gets all of it, including what is behind a message that it released.
                if !together && (stopped || !batch.wants(index)) {
                    continue;
                }
                match fates[index] {
                    1 if !together => batch.fail(index, "x".to_owned()),
                    2 => {
                        batch.release(index);
                        let released: &mut Option<usize> = &mut released[partitions[index]];
                        released.get_or_insert(index);
                    }
                    _ => batch.complete(index),
                }
                if early[index] && !together {
                    told.extend(batch.done());
                }
            }
            told.extend(batch.rest(&[]));
            prop_assert!(batch.rest(&[]).is_empty());
            for number in 0..4 {
                let of_this: Vec<_> = told.iter().filter(|told| partitions[told.index] == number).collect();
                let all: Vec<usize> = (0..partitions.len()).filter(|&index| partitions[index] == number).collect();
                // In order, and never completed behind a failure.
                prop_assert!(of_this.windows(2).all(|two| two[0].index < two[1].index));
                prop_assert!(of_this.windows(2).all(|two| two[0].status == Status::Completed || two[1].status != Status::Completed));
                // The last message is completed, or the partition is released. What is behind a message that the
                // handler released is given back as well.
                let end = of_this.last().map(|told| (told.index, told.status));
                if let Some(released) = released[number] {
                    let behind = all.iter().find(|&&index| index > released);
                    prop_assert!(behind.is_none_or(|&behind| end == Some((behind, Status::Retry))));
                    prop_assert!(of_this.iter().all(|told| told.index < released || Some(&told.index) == behind));
                } else if let Some(&last) = all.last() {
                    let (index, status) = end.unwrap();
                    prop_assert!(status != Status::Completed || index == last);
                }
            }
        }

        #[test]
        fn messages_that_handlers_acknowledge_are_reported_only_if_unhandled(
            handled in prop::collection::vec(any::<bool>(), 1..10)
        ) {
            let mut batch = Settlement::new(handled.iter().map(|_| "a"), false);
            let first = handled.iter().position(|handled| !handled);
            (0..first.unwrap_or(handled.len())).for_each(|index| batch.complete(index));
            prop_assert!(batch.done().is_empty());
            let told: Vec<_> = batch.rest(&[]).iter().map(|told| (told.index, told.status)).collect();
            prop_assert_eq!(told, first.map(|index| (index, Status::Retry)).into_iter().collect::<Vec<_>>());
        }
    }
}
