//! Browsing: one page of messages, newest first, from a log that is far too large to scan. Segments are walked
//! backwards, by partition where there are few and by slices of time otherwise, until the page is full. Payloads are
//! read for that page only.

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

use super::message_status::{MessageStatus, Standing};
use super::messages::{Mode, StoredMessage};
use crate::Engine;
use crate::db::messages::{self as db, Reader, Scope, Span};
use crate::db::{Connections, control};
use crate::error::Error;

/// Up to this many partitions, each is walked by its own index.
const PARTITIONS_MAX: usize = 256;

/// Segments that one page may look at: about a second's work. Beyond that, the answer says that it is not complete.
const LOOKED_MAX: usize = 200_000;

/// Segments in one slice of time; a slice with more is cut smaller.
const SLICE_MAX: i32 = 5_000;

/// Messages whose status takes about as long to work out as one segment takes to read.
const MESSAGES_PER_SEGMENT: usize = 16;

/// Messages whose status is worked out together when a page asks for one status only.
const CHUNK: usize = 1_000;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;

#[derive(Debug, Clone, Default)]
pub struct MessageFilter {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    pub status: Option<MessageStatus>,
    /// Microseconds since 1970, both included. Without `from`: the last hour, or the hour before `to`.
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub limit: usize,
    pub offset: usize,
}

#[derive(Debug)]
pub struct MessagePage {
    pub messages: Vec<StoredMessage>,
    pub mode: Mode,
    /// Set when there was too much to look through: nothing older than this was looked at. Ask again up to here.
    pub looked_until: Option<i64>,
}

/// A message's place. Pages list messages in descending order of it: by time, and within the same time by message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    created_at: i64,
    offset: i64,
    number: i64,
    partition: Uuid,
}

impl Engine {
    pub async fn has_queue(&self, queue: &str) -> Result<bool, Error> {
        Ok(db::has_queue(&self.shared.reads, queue).await?)
    }

    /// A page of messages, newest first.
    pub async fn messages(&self, filter: &MessageFilter) -> Result<MessagePage, Error> {
        self.check_open()?;
        let connections = &self.shared.reads;
        let now = control::now(connections).await?;
        let until = filter.to.unwrap_or(i64::MAX / 2);
        let window = (filter.from.unwrap_or(until.min(now) - HOUR), until);
        let scope = Scope {
            queue: filter.queue.as_deref(),
            partition: filter.partition.as_deref(),
            namespace: filter.namespace.as_deref(),
            task: filter.task.as_deref(),
        };
        let partitions = db::partitions_within(connections, &scope, PARTITIONS_MAX as i32 + 1).await?;
        let mut walk = Walk {
            connections,
            scope,
            window,
            looked: 0,
            source: match partitions.len() > PARTITIONS_MAX {
                true => Source::Slices { until, now, width: SECOND },
                false => Source::Merge(partitions.into_iter().map(Lane::new).collect()),
            },
        };
        let (found, looked_until) = walk.page(filter).await?;
        let messages = self.describe(&found).await?;
        Ok(MessagePage {
            mode: Mode::of(messages.iter().map(|message| &message.standing)),
            messages,
            looked_until,
        })
    }

    /// Reads the messages of these places that are still stored.
    async fn describe(&self, found: &[Found]) -> Result<Vec<StoredMessage>, Error> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let connections = &self.shared.reads;
        let places: Vec<(Uuid, i64)> = found.iter().map(|found| (found.partition, found.offset)).collect();
        let rows = db::messages_at(connections, &places).await?;
        let partitions: HashSet<Uuid> = found.iter().map(|found| found.partition).collect();
        let mut readers = Readers::default();
        readers.learn(connections, partitions).await?;
        let described = found.iter().zip(rows).filter_map(|(found, row)| {
            let row = row?;
            let standing = Standing::of(found.offset, row.dead.is_some(), readers.of(found.partition));
            StoredMessage::new(found.partition, found.offset, None, row, standing, &self.shared.config.keys)
        });
        Ok(described.collect())
    }
}

/// The readers of the partitions that were looked up.
#[derive(Default)]
struct Readers(HashMap<Uuid, Vec<Reader>>);

impl Readers {
    async fn learn(
        &mut self,
        connections: &Connections,
        partitions: impl IntoIterator<Item = Uuid>,
    ) -> Result<(), Error> {
        let unknown: Vec<Uuid> = partitions.into_iter().filter(|id| !self.0.contains_key(id)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        for (partition, reader) in db::readers_at(connections, &unknown).await? {
            self.0.entry(partition).or_default().push(reader);
        }
        for partition in unknown {
            self.0.entry(partition).or_default();
        }
        Ok(())
    }

    fn of(&self, partition: Uuid) -> &[Reader] {
        self.0.get(&partition).map_or(&[], Vec::as_slice)
    }
}

struct Walk<'a> {
    connections: &'a Connections,
    scope: Scope<'a>,
    window: (i64, i64),
    looked: usize,
    source: Source,
}

enum Source {
    Merge(Vec<Lane>),
    /// Nothing older than `until` has been looked at yet.
    Slices {
        until: i64,
        now: i64,
        width: i64,
    },
}

/// One partition, walked backwards.
struct Lane {
    partition: (Uuid, i64),
    ahead: VecDeque<Span>,
    below: Option<i64>,
    chunk: i32,
    ended: bool,
}

impl Lane {
    fn new(partition: (Uuid, i64)) -> Self {
        Self { partition, ahead: VecDeque::new(), below: None, chunk: 8, ended: false }
    }
}

/// The next step of a walk.
enum Next {
    /// All spans of a range of times: complete, newer than everything that follows, and newest first.
    Spans(Vec<Span>),
    End,
    /// The limit was reached: nothing older than this was looked at.
    Tired(i64),
}

impl Walk<'_> {
    /// The page, and how far back the search got if it did not cover the whole window.
    async fn page(&mut self, filter: &MessageFilter) -> Result<(Vec<Found>, Option<i64>), Error> {
        let mut page = Page { skip: filter.offset, limit: filter.limit, found: Vec::new() };
        let mut readers = Readers::default();
        loop {
            let spans = match self.next().await? {
                Next::Spans(spans) => spans,
                Next::End => return Ok((page.found, None)),
                Next::Tired(at) => return Ok((page.found, Some(at))),
            };
            let Some(wanted) = filter.status else {
                page.take(&spans, None);
                if page.is_full() {
                    return Ok((page.found, None));
                }
                continue;
            };
            for chunk in chunks(&spans) {
                self.looked += chunk.len() + chunk.iter().map(count).sum::<usize>() / MESSAGES_PER_SEGMENT;
                readers
                    .learn(self.connections, chunk.iter().map(|span| span.partition).collect::<HashSet<_>>())
                    .await?;
                let dead: HashSet<(Uuid, i64)> =
                    db::dead_between(self.connections, chunk).await?.into_iter().collect();
                let has_status = |found: &Found| {
                    let dead = dead.contains(&(found.partition, found.offset));
                    Standing::of(found.offset, dead, readers.of(found.partition)).status == wanted
                };
                page.take(chunk, Some(&has_status));
                if page.is_full() {
                    return Ok((page.found, None));
                }
                if self.looked > LOOKED_MAX {
                    return Ok((page.found, chunk.last().map(|span| span.created_at)));
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Next, Error> {
        let (from, until) = self.window;
        match &mut self.source {
            Source::Merge(lanes) => {
                let looked = refill(self.connections, lanes, until).await?;
                self.looked += looked;
                let newest =
                    lanes.iter().filter_map(|lane| lane.ahead.front()).map(|span| span.created_at).max();
                let Some(newest) = newest.filter(|newest| *newest >= from) else { return Ok(Next::End) };
                if self.looked > LOOKED_MAX {
                    return Ok(Next::Tired(newest));
                }
                let mut spans = Vec::new();
                loop {
                    for lane in lanes.iter_mut() {
                        while let Some(span) = lane.ahead.pop_front_if(|span| span.created_at == newest) {
                            spans.push(span);
                        }
                    }
                    // A lane that ran dry may continue at the same time.
                    if lanes.iter().all(|lane| lane.ended || !lane.ahead.is_empty()) {
                        return Ok(Next::Spans(spans));
                    }
                    self.looked += refill(self.connections, lanes, until).await?;
                    if lanes.iter().all(|lane| lane.ahead.front().is_none_or(|span| span.created_at < newest))
                    {
                        return Ok(Next::Spans(spans));
                    }
                }
            }
            Source::Slices { until, now, width } => loop {
                if *until < from {
                    return Ok(Next::End);
                }
                if self.looked > LOOKED_MAX {
                    return Ok(Next::Tired(*until));
                }
                // The first slice includes messages that a clock, since set back, has dated in the future.
                let after = ((*until).min(*now) - *width).max(from - 1);
                // Many partitions written in one flight share their time to the microsecond; that cannot be cut
                // further.
                let limit = if *width > 1 { SLICE_MAX } else { LOOKED_MAX as i32 };
                let (looked, mut spans) =
                    db::spans_between(self.connections, &self.scope, after, *until, limit).await?;
                self.looked += looked as usize;
                if looked > limit {
                    *width = (*width / 8).max(1);
                    continue;
                }
                *until = after;
                if looked < SLICE_MAX / 8 {
                    *width = width.saturating_mul(4);
                }
                if !spans.is_empty() {
                    spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.created_at));
                    return Ok(Next::Spans(spans));
                }
            },
        }
    }
}

/// Reads ahead in every lane that has nothing ahead. Returns the number of segments read.
async fn refill(connections: &Connections, lanes: &mut [Lane], until: i64) -> Result<usize, Error> {
    let dry: Vec<usize> =
        (0..lanes.len()).filter(|&index| !lanes[index].ended && lanes[index].ahead.is_empty()).collect();
    if dry.is_empty() {
        return Ok(0);
    }
    let chunk = dry.iter().map(|&index| lanes[index].chunk).min().unwrap_or(8);
    let partitions: Vec<(Uuid, i64)> = dry.iter().map(|&index| lanes[index].partition).collect();
    let below: Vec<Option<i64>> = dry.iter().map(|&index| lanes[index].below).collect();
    let spans = db::newest_spans(connections, &partitions, &below, until, chunk).await?;
    let looked = spans.len();
    for (position, below, span) in spans {
        let lane = &mut lanes[dry[position]];
        lane.below = Some(below);
        lane.ahead.push_back(span);
    }
    for index in dry {
        let lane = &mut lanes[index];
        lane.ended = lane.ahead.len() < chunk as usize;
        lane.chunk = (chunk * 4).min(1_024);
    }
    Ok(looked)
}

/// Cuts spans into chunks of enough messages for one look at their readers. Spans of one time stay together.
fn chunks(spans: &[Span]) -> impl Iterator<Item = &[Span]> {
    let mut rest = spans;
    std::iter::from_fn(move || {
        let mut messages = 0;
        let mut end = 0;
        for same in rest.chunk_by(|a, b| a.created_at == b.created_at) {
            if messages >= CHUNK {
                break;
            }
            end += same.len();
            messages += same.iter().map(count).sum::<usize>();
        }
        let (chunk, after) = rest.split_at(end);
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn count(span: &Span) -> usize {
    let gaps = span.gaps.iter().filter(|gap| (span.first..span.last).contains(gap)).count();
    (span.last - span.first).max(0) as usize - gaps
}

/// How many messages are still to be skipped, and which were found.
struct Page {
    skip: usize,
    limit: usize,
    found: Vec<Found>,
}

impl Page {
    fn is_full(&self) -> bool {
        self.found.len() >= self.limit
    }

    /// Takes spans of complete times, newest first.
    fn take(&mut self, spans: &[Span], matches: Option<&dyn Fn(&Found) -> bool>) {
        for same in spans.chunk_by(|a, b| a.created_at == b.created_at) {
            if self.is_full() {
                return;
            }
            // On a page far back, most messages are skipped.
            let all: usize = same.iter().map(count).sum();
            if matches.is_none() && all <= self.skip {
                self.skip -= all;
                continue;
            }
            let matching =
                same.iter().flat_map(places).filter(|found| matches.is_none_or(|matches| matches(found)));
            let mut found: Vec<Found> = matching.collect();
            if found.len() <= self.skip {
                self.skip -= found.len();
                continue;
            }
            found.sort_unstable_by(|a, b| b.cmp(a));
            let wanted = found.into_iter().skip(std::mem::take(&mut self.skip));
            self.found.extend(wanted.take(self.limit - self.found.len()));
        }
    }
}

fn places(span: &Span) -> impl Iterator<Item = Found> + '_ {
    let kept = (span.first..span.last).filter(|offset| !span.gaps.contains(offset));
    kept.map(|offset| Found {
        created_at: span.created_at,
        offset,
        number: span.number,
        partition: span.partition,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(number: i64, created_at: i64, first: i64, last: i64) -> Span {
        Span { partition: Uuid::from_u128(number as u128), number, first, last, created_at, gaps: Vec::new() }
    }

    proptest! {
        #[test]
        fn pages_put_together_are_the_whole_in_order_without_a_hole_or_a_repetition(
            times in prop::collection::vec((0i64..4, 0i64..5, 1i64..6, prop::option::of(0i64..6)), 1..12),
            limit in 1usize..7
        ) {
            // Offsets of a partition grow with time.
            let mut heads = HashMap::new();
            let mut times = times;
            times.sort_by_key(|(_, at, _, _)| *at);
            let mut spans: Vec<Span> = times
                .into_iter()
                .map(|(number, at, count, gap)| {
                    let head: &mut i64 = heads.entry(number).or_default();
                    let first = std::mem::replace(head, *head + count);
                    let gaps = gap.map(|gap| first + gap).into_iter().collect();
                    Span { gaps, ..span(number, at, first, first + count) }
                })
                .collect();
            spans.sort_by_key(|span| std::cmp::Reverse(span.created_at));
            let mut whole: Vec<Found> = spans.iter().flat_map(places).collect();
            whole.sort_by(|a, b| b.cmp(a));
            let mut pages = Vec::new();
            loop {
                let mut page = Page { skip: pages.len(), limit, found: Vec::new() };
                page.take(&spans, None);
                if page.found.is_empty() {
                    break;
                }
                pages.extend(page.found);
            }
            prop_assert_eq!(pages, whole);
        }
    }

    #[test]
    fn a_look_at_readers_covers_whole_times() {
        let spans = [span(1, 9, 0, 600), span(2, 9, 0, 600), span(1, 8, 0, 1), span(1, 7, 0, 2_000)];
        let cut: Vec<usize> = chunks(&spans).map(<[Span]>::len).collect();
        assert_eq!(cut, [2, 2]);
        assert_eq!(chunks(&[]).count(), 0);
    }
}
