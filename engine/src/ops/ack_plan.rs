//! The acknowledgement rules: what a set of statuses does to a group's cursor. Pure: the cursor is given, and
//! whether the retry budget is spent is known only to the database, so both cases are planned.

use queen_protocol::AckStatus;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub offset: i64,
    pub status: AckStatus,
    pub error: Option<String>,
}

/// What happens if the budget lasts, or if it is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    pub cursor: i64,
    /// A nack ends the lease here, whatever follows.
    pub stops: bool,
    /// Items to dead-letter.
    pub dead: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The first walk stops at a `failed`, which costs a retry.
    pub negative: bool,
    pub with_budget: Walk,
    pub without_budget: Walk,
}

impl Plan {
    /// Nothing but completions.
    pub fn is_plain(&self) -> bool {
        !self.negative && !self.with_budget.stops && self.without_budget.dead.is_empty()
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
    let (with_budget, negative) = walk(items, &order, cursor, false);
    let (without_budget, _) = walk(items, &order, cursor, true);
    Plan { negative, with_budget, without_budget }
}

fn walk(items: &[Item], order: &[usize], cursor: i64, spent: bool) -> (Walk, bool) {
    let mut walk = Walk { cursor, stops: false, dead: Vec::new() };
    for &index in order {
        let after = items[index].offset + 1;
        match items[index].status {
            AckStatus::Completed => walk.cursor = walk.cursor.max(after),
            AckStatus::Retry => {
                walk.stops = true;
                return (walk, false);
            }
            AckStatus::Failed if !spent => {
                walk.stops = true;
                return (walk, true);
            }
            AckStatus::Failed | AckStatus::Dlq => {
                walk.cursor = walk.cursor.max(after);
                walk.dead.push(index);
            }
        }
    }
    (walk, false)
}

/// What each item is told, once the database has said which walk it took.
pub fn verdicts(items: &[Item], cursor: i64, walk: &Walk) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = items
        .iter()
        .map(|item| match item.status {
            _ if item.offset >= cursor => Verdict::Done,
            AckStatus::Completed => Verdict::Noop,
            _ => Verdict::Committed,
        })
        .collect();
    for &index in &walk.dead {
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
        assert!(plan.negative && plan.with_budget.stops);
        assert_eq!(plan.with_budget.cursor, 1);
        assert_eq!(plan.without_budget, Walk { cursor: 3, stops: false, dead: vec![1] });
    }

    #[test]
    fn a_retry_costs_nothing_and_stops_in_both_cases() {
        let items = items(&[(0, Failed), (1, Retry), (2, Completed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.without_budget, Walk { cursor: 1, stops: true, dead: vec![0] });
        let items = self::items(&[(0, Retry), (1, Failed)]);
        assert!(!super::plan(&items, 0).negative);
    }

    #[test]
    fn dead_letters_go_whatever_the_budget_and_every_failed_item_when_it_is_spent() {
        let items = items(&[(0, Dlq), (1, Failed), (2, Failed)]);
        let plan = plan(&items, 0);
        assert_eq!(plan.with_budget, Walk { cursor: 1, stops: true, dead: vec![0] });
        assert_eq!(plan.without_budget, Walk { cursor: 3, stops: false, dead: vec![0, 1, 2] });
    }

    #[test]
    fn what_was_committed_is_a_noop_to_complete_and_a_refusal_to_fail() {
        let items = items(&[(1, Completed), (2, Failed), (5, Completed)]);
        let plan = plan(&items, 4);
        assert_eq!(
            verdicts(&items, 4, &plan.with_budget),
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
            for (walk, spent) in [(&plan.with_budget, false), (&plan.without_budget, true)] {
                prop_assert!(walk.cursor >= cursor);
                for (index, item) in items.iter().enumerate() {
                    let passed = item.offset >= cursor && item.offset < walk.cursor;
                    let nack = item.status == Retry || (item.status == Failed && !spent);
                    // Two statuses for one message: the first in the walk decides.
                    let twice = items.iter().filter(|other| other.offset == item.offset).count() > 1;
                    prop_assert!(!(passed && nack) || twice);
                    prop_assert!(!walk.dead.contains(&index) || passed);
                }
            }
        }
    }
}
