//! The status of a message, derived from cursors, leases and dead letters. Pure: no status is stored anywhere.

use queen_protocol::QUEUE_MODE;

use crate::db::messages::Reader;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageStatus {
    Pending,
    Processing,
    Completed,
    DeadLetter,
}

impl MessageStatus {
    pub const ALL: [Self; 4] = [Self::Pending, Self::Processing, Self::Completed, Self::DeadLetter];

    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::DeadLetter => "dead_letter",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// What one group did with one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStanding {
    pub name: String,
    pub consumed: bool,
    /// Microseconds since 1970, while the message is in a live lease of the group.
    pub lease_until: Option<i64>,
}

/// Everything about one message that its partition's readers reveal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub status: MessageStatus,
    /// The status in queue mode; `None` if only named groups read here.
    pub queue_status: Option<MessageStatus>,
    /// Named groups that have passed the message, and all named groups.
    pub consumed_by: usize,
    pub groups_total: usize,
    pub groups: Vec<GroupStanding>,
}

impl Standing {
    /// A dead letter counts as one whatever else is true, and a leased message as being processed whichever group
    /// holds it. Otherwise queue mode decides, or, where only groups read, all of them together.
    pub fn of(offset: i64, dead: bool, readers: &[Reader]) -> Self {
        let groups: Vec<GroupStanding> = readers.iter().map(|reader| group(offset, reader)).collect();
        let queue_mode = groups.iter().find(|group| group.name == QUEUE_MODE);
        let named = || groups.iter().filter(|group| group.name != QUEUE_MODE);
        let (groups_total, consumed_by) = (named().count(), named().filter(|group| group.consumed).count());
        let queue_status = match queue_mode {
            Some(group) if group.consumed => Some(MessageStatus::Completed),
            Some(group) if group.lease_until.is_some() => Some(MessageStatus::Processing),
            Some(_) => Some(MessageStatus::Pending),
            None if groups_total == 0 => Some(MessageStatus::Pending),
            None => None,
        };
        let status = if dead {
            MessageStatus::DeadLetter
        } else if groups.iter().any(|group| group.lease_until.is_some()) {
            MessageStatus::Processing
        } else {
            match queue_status {
                Some(status) => status,
                None if consumed_by == groups_total => MessageStatus::Completed,
                None => MessageStatus::Pending,
            }
        };
        Self { status, queue_status, consumed_by, groups_total, groups }
    }

    pub fn lease_until(&self) -> Option<i64> {
        self.groups.iter().filter_map(|group| group.lease_until).max()
    }
}

fn group(offset: i64, reader: &Reader) -> GroupStanding {
    let consumed = offset < reader.cursor || reader.skipped.contains(&offset);
    let leased = reader.lease.filter(|(end, _)| !consumed && offset < *end);
    GroupStanding { name: reader.group.clone(), consumed, lease_until: leased.map(|(_, until)| until) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(group: &str, cursor: i64, lease: Option<(i64, i64)>) -> Reader {
        Reader { group: group.to_owned(), cursor, lease, skipped: Vec::new() }
    }

    #[test]
    fn queue_mode_decides_where_there_is_one() {
        let readers = [reader(QUEUE_MODE, 3, None), reader("g", 0, None)];
        for (offset, status) in [(2, MessageStatus::Completed), (3, MessageStatus::Pending)] {
            let standing = Standing::of(offset, false, &readers);
            assert_eq!((standing.status, standing.queue_status), (status, Some(status)));
            assert_eq!((standing.consumed_by, standing.groups_total), (0, 1));
        }
    }

    #[test]
    fn among_groups_the_last_one_decides() {
        let readers = [reader("a", 5, None), reader("b", 4, None)];
        assert_eq!(Standing::of(3, false, &readers).status, MessageStatus::Completed);
        let standing = Standing::of(4, false, &readers);
        assert_eq!((standing.status, standing.queue_status), (MessageStatus::Pending, None));
        assert_eq!(standing.consumed_by, 1);
    }

    #[test]
    fn a_lease_of_anybody_is_processing_and_a_dead_letter_wins() {
        let readers = [reader(QUEUE_MODE, 9, None), reader("g", 2, Some((4, 77)))];
        let standing = Standing::of(3, false, &readers);
        assert_eq!((standing.status, standing.lease_until()), (MessageStatus::Processing, Some(77)));
        assert_eq!(Standing::of(4, false, &readers).status, MessageStatus::Completed);
        assert_eq!(Standing::of(3, true, &readers).status, MessageStatus::DeadLetter);
    }

    #[test]
    fn what_a_group_is_not_given_counts_as_passed_and_without_readers_all_is_pending() {
        let skipping = Reader { skipped: vec![4], ..reader("g", 2, None) };
        assert_eq!(Standing::of(4, false, &[skipping]).status, MessageStatus::Completed);
        assert_eq!(Standing::of(4, false, &[]).status, MessageStatus::Pending);
    }
}
