//! The acknowledgement rules: what a set of statuses does to a group's cursor. Pure: the cursor is passed in. Only the
//! database knows how often a message has failed before, so every way the ack may go is planned.

use std::ops::Range;

use queen_protocol::AckStatus;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub offset: i64,
    pub status: AckStatus,
    pub error: Option<String>,
}

/// One way the ack may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    pub cursor: i64,
    /// A nack ends the lease here, whatever follows.
    pub stops: bool,
    /// The messages whose failure stopped it: the first that may be retried, and the failed ones right behind it.
    pub failed: Option<Range<i64>>,
    /// Items to dead-letter.
    pub dead: Vec<usize>,
}

/// The three ways the ack may go; all the same if nothing failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The first message that failed has retries left.
    pub with_budget: Walk,
    /// It has none left, and neither have the failed ones right behind it. All others have some.
    pub first_spent: Walk,
    /// Nothing is retried.
    pub without_budget: Walk,
}

impl Plan {
    /// Nothing but completions.
    pub fn is_plain(&self) -> bool {
        !self.with_budget.stops && self.without_budget.dead.is_empty()
    }

    /// Everything in it was already settled.
    pub fn is_idle(&self, cursor: i64) -> bool {
        self.is_plain() && self.without_budget.cursor == cursor
    }

    /// In the order in which queen.settle counts them.
    pub fn ways(&self) -> [&Walk; 3] {
        [&self.with_budget, &self.first_spent, &self.without_budget]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Done,
    /// Was completed before: harmless.
    Noop,
    /// Was completed before, and cannot be taken back.
    Committed,
    Dead,
}

/// Plans the items of one (partition, group), in any order, against its cursor.
pub fn plan(items: &[Item], cursor: i64) -> Plan {
    let mut order: Vec<usize> = (0..items.len()).filter(|&index| items[index].offset >= cursor).collect();
    order.sort_by_key(|&index| items[index].offset);
    let with_budget = walk(items, &order, cursor, i64::MIN);
    let spent_to = with_budget.failed.as_ref().map_or(i64::MIN, |failed| failed.end);
    Plan {
        first_spent: walk(items, &order, cursor, spent_to),
        without_budget: walk(items, &order, cursor, i64::MAX),
        with_budget,
    }
}

/// Messages below `spent_to` have no retries left.
fn walk(items: &[Item], order: &[usize], cursor: i64, spent_to: i64) -> Walk {
    let mut walk = Walk { cursor, stops: false, failed: None, dead: Vec::new() };
    for (place, &index) in order.iter().enumerate() {
        let offset = items[index].offset;
        match items[index].status {
            AckStatus::Completed => walk.cursor = walk.cursor.max(offset + 1),
            AckStatus::Retry => {
                walk.stops = true;
                break;
            }
            AckStatus::Failed if offset >= spent_to => {
                walk.stops = true;
                walk.failed = Some(offset..end_of_failures(items, &order[place..]));
                break;
            }
            AckStatus::Failed | AckStatus::Dlq => {
                walk.cursor = walk.cursor.max(offset + 1);
                walk.dead.push(index);
            }
        }
    }
    walk
}

/// Where the first run of failed messages without a gap ends.
fn end_of_failures(items: &[Item], order: &[usize]) -> i64 {
    let mut end = items[order[0]].offset;
    for item in order.iter().map(|&index| &items[index]) {
        if item.status != AckStatus::Failed || item.offset > end {
            break;
        }
        end = item.offset + 1;
    }
    end
}

/// The verdict on each item, once the database has reported which walk it took and how far it got: some messages that
/// failed together may have failed less often than the first.
pub fn verdicts(items: &[Item], cursor: i64, walk: &Walk, reached: i64) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = items
        .iter()
        .map(|item| match item.status {
            _ if item.offset >= cursor => Verdict::Done,
            AckStatus::Completed => Verdict::Noop,
            _ => Verdict::Committed,
        })
        .collect();
    for &index in walk.dead.iter().filter(|&&index| items[index].offset < reached) {
        verdicts[index] = Verdict::Dead;
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use AckStatus::{Completed, Dlq, Failed, Retry};
    use proptest::prelude::*;

    fn items(statuses: &[(i64, AckStatus)]) -> Vec<Item> {
        statuses.iter().map(|&(offset, status)| Item { offset, status, error: None }).collect()
    }

    fn cursors(statuses: &[(i64, AckStatus)], cursor: i64) -> (i64, i64) {
        let plan = plan(&items(statuses), cursor);
        (plan.with_budget.cursor, plan.without_budget.cursor)
    }

    #[test]
    fn the_last_completion_finishes_everything_silent_below_it() {
        assert_eq!(cursors(&[(9, Completed)], 0), (10, 10));
        assert_eq!(cursors(&[(5, Completed), (2, Completed)], 0), (6, 6));
    }

    #[test]
    fn a_cursor_never_moves_back() {
        assert_eq!(cursors(&[(2, Completed)], 7), (7, 7));
        assert_eq!(cursors(&[(2, Failed)], 7), (7, 7));
    }

    #[test]
    fn a_failure_is_not_jumped_over_while_there_is_budget() {
        let items = items(&[(0, Completed), (1, Failed), (2, Completed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.with_budget, stopped(1, Some(1..2), &[]));
        let over = Walk { cursor: 3, stops: false, failed: None, dead: vec![1] };
        assert_eq!((&plan.first_spent, &plan.without_budget), (&over, &over));
    }

    fn stopped(cursor: i64, failed: Option<Range<i64>>, dead: &[usize]) -> Walk {
        Walk { cursor, stops: true, failed, dead: dead.to_vec() }
    }

    #[test]
    fn what_failed_with_the_first_shares_its_count_and_what_failed_behind_a_gap_has_its_own() {
        let items = items(&[(0, Failed), (1, Failed), (2, Completed), (3, Failed), (4, Failed), (6, Failed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.with_budget, stopped(0, Some(0..2), &[]));
        assert_eq!(plan.first_spent, stopped(3, Some(3..5), &[0, 1]));
        assert_eq!(plan.without_budget.dead, [0, 1, 3, 4, 5]);
        let verdicts = verdicts(&items, 0, &plan.first_spent, 1);
        assert_eq!(verdicts[..2], [Verdict::Dead, Verdict::Done], "the second has failed less often");
    }

    #[test]
    fn a_retry_costs_nothing_and_stops_in_both_cases() {
        let items = items(&[(0, Failed), (1, Retry), (2, Completed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.without_budget, stopped(1, None, &[0]));
        let items = self::items(&[(0, Retry), (1, Failed)]);
        assert_eq!(super::plan(&items, 0).with_budget, stopped(0, None, &[]));
    }

    #[test]
    fn dead_letters_go_whatever_the_budget_and_every_failed_item_when_it_is_spent() {
        let items = items(&[(0, Dlq), (1, Failed), (2, Failed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.with_budget, stopped(1, Some(1..3), &[0]));
        assert_eq!(plan.without_budget, Walk { cursor: 3, stops: false, failed: None, dead: vec![0, 1, 2] });
    }

    #[test]
    fn what_was_committed_is_a_noop_to_complete_and_a_refusal_to_fail() {
        let items = items(&[(1, Completed), (2, Failed), (5, Completed)]);
        let plan = plan(&items, 4);
        assert_eq!(
            verdicts(&items, 4, &plan.with_budget, 6),
            [Verdict::Noop, Verdict::Committed, Verdict::Done]
        );
    }

    fn status() -> impl Strategy<Value = AckStatus> {
        prop_oneof![Just(Completed), Just(Failed), Just(Retry), Just(Dlq)]
    }

    proptest! {
        #[test]
        fn nothing_negative_is_ever_passed_over(
            statuses in prop::collection::vec((0i64..20, status()), 0..20), cursor in 0i64..20
        ) {
            let items = items(&statuses);
            let plan = plan(&items, cursor);
            let spent = plan.with_budget.failed.as_ref().map_or(cursor, |failed| failed.end);
            for (walk, spent) in plan.ways().into_iter().zip([0, spent, 20]) {
                prop_assert!(walk.cursor >= cursor);
                for (index, item) in items.iter().enumerate() {
                    let passed = item.offset >= cursor && item.offset < walk.cursor;
                    let nack = item.status == Retry || (item.status == Failed && item.offset >= spent);
                    // Two statuses for one message: the first in the walk decides.
                    let twice = items.iter().filter(|other| other.offset == item.offset).count() > 1;
                    prop_assert!(!(passed && nack) || twice);
                    prop_assert!(!walk.dead.contains(&index) || passed);
                }
            }
        }
    }
}
