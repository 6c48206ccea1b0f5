//! What the workers and the network will do: a pure function of the seed. It knows no engine and no clock; where a
//! step depends on what was popped, it says which share of it.

use std::time::Duration;

use queen_testkit::Random;

use crate::words::{Group, LEASE_SECONDS, LEASE_SECONDS_MAX, PARTITIONS, Partition, Serial, Via};

#[derive(Debug, Clone)]
pub enum Step {
    /// `look`: ask the database at once whether what was answered is there.
    Push {
        via: Via,
        items: Vec<Item>,
        hang_up: Option<Duration>,
        look: bool,
    },
    Pop(Pop),
    /// Acknowledges something held, or (`stale`) something that was held once.
    Settle {
        via: Via,
        which: usize,
        stale: bool,
        how: Settlement,
        share: u64,
        hang_up: Option<Duration>,
    },
    Renew {
        via: Via,
        which: usize,
        stale: bool,
        seconds: i32,
    },
    Transact {
        via: Via,
        which: usize,
        stale: bool,
        share: u64,
        proof: Proof,
        poison: bool,
        items: Vec<Item>,
    },
    Seek {
        to_end: bool,
    },
    Rest(Duration),
}

#[derive(Debug, Clone)]
pub struct Item {
    pub partition: Partition,
    pub serial: Serial,
    pub transaction: Transaction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// The engine finds one.
    Minted,
    /// Used by no other worker.
    Fresh,
    /// One of a few that are used again and again.
    Repeated(u64),
}

#[derive(Debug, Clone)]
pub struct Pop {
    pub via: Via,
    pub group: Group,
    /// `None`: any.
    pub partition: Option<Partition>,
    pub partitions: u32,
    pub batch: u32,
    pub lease_seconds: i32,
    pub wait: Option<Duration>,
    pub hang_up: Option<Duration>,
}

impl Default for Pop {
    fn default() -> Self {
        Self {
            via: Via::Healthy,
            group: Group::Queue,
            partition: None,
            partitions: 1,
            batch: 1,
            lease_seconds: LEASE_SECONDS,
            wait: None,
            hang_up: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Every message completed.
    Full,
    /// Only the last is mentioned.
    Last,
    /// The first `share` percent; the rest is still held.
    Partial,
    /// The second half first, then the first.
    OutOfOrder,
    /// The first `share` percent without a lease.
    Leaseless,
    /// Completed below, nacked at `share` percent, completed above.
    Failed,
    /// The same without a lease.
    LeaselessFailed,
    Retry,
    Dlq,
    /// Nothing is said: the lease runs out.
    Forgotten,
}

/// How a transaction says that it still owns what it acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Each ack carries its lease.
    Lease,
    /// The lease is required by the whole.
    Required,
    Nothing,
}

#[derive(Debug, Clone)]
pub enum Fault {
    Cut,
    BlackHole {
        lasts: Duration,
        then_cut: bool,
    },
    Delay {
        lasts: Duration,
        each: Duration,
    },
    Refuse {
        lasts: Duration,
    },
    /// The next request that holds these bytes is done and not answered.
    CutBeforeReply(Option<&'static [u8]>),
}

/// The steps of one worker.
pub fn steps(seed: u64, worker: u64, count: usize) -> Vec<Step> {
    let mut random = Random::stream(seed, worker + 1);
    // Room for a hundred messages a step and a million steps.
    (0..count as u64).map(|step| self::step(&mut random, (worker + 1) * 100_000_000 + step * 100)).collect()
}

/// What happens to the network, without end: a pause, then a fault.
pub fn faults(seed: u64) -> impl Iterator<Item = (Duration, Fault)> {
    let mut random = Random::stream(seed, 0);
    std::iter::repeat_with(move || {
        let pause = millis(&mut random, 5, 100);
        (pause, fault(&mut random))
    })
}

fn fault(random: &mut Random) -> Fault {
    // A push, a transaction's end, and statements that name a group.
    const REQUESTS: [Option<&[u8]>; 7] = [
        None,
        Some(b"serial"),
        Some(b"serial"),
        Some(b"commit"),
        Some(b"billing"),
        Some(b"__QUEUE_MODE__"),
        Some(b"far"),
    ];
    match random.below(100) {
        0..25 => Fault::Cut,
        25..35 => Fault::BlackHole { lasts: millis(random, 50, 300), then_cut: random.chance(60) },
        35..45 => Fault::Delay { lasts: millis(random, 50, 300), each: millis(random, 1, 25) },
        45..50 => Fault::Refuse { lasts: millis(random, 20, 300) },
        _ => Fault::CutBeforeReply(random.pick(&REQUESTS)),
    }
}

fn step(random: &mut Random, serial: Serial) -> Step {
    let which = random.below(1000) as usize;
    let most = if random.chance(20) { 20 } else { 6 };
    match random.below(100) {
        0..24 => Step::Push {
            via: via(random),
            items: items(random, serial, most, true),
            hang_up: hang_up(random),
            look: random.chance(30),
        },
        24..60 => Step::Pop(pop(random)),
        60..83 => {
            const HOWS: [Settlement; 16] = [
                Settlement::Full,
                Settlement::Full,
                Settlement::Full,
                Settlement::Last,
                Settlement::Last,
                Settlement::Partial,
                Settlement::Partial,
                Settlement::OutOfOrder,
                Settlement::Leaseless,
                Settlement::Failed,
                Settlement::Failed,
                Settlement::Failed,
                Settlement::LeaselessFailed,
                Settlement::Retry,
                Settlement::Dlq,
                Settlement::Forgotten,
            ];
            let (via, stale, how) = (via(random), random.chance(15), random.pick(&HOWS));
            Step::Settle { via, which, stale, how, share: random.below(101), hang_up: hang_up(random) }
        }
        83..87 => Step::Renew {
            via: via(random),
            which,
            stale: random.chance(20),
            seconds: random.between(1, LEASE_SECONDS_MAX as u64) as i32,
        },
        87..96 => Step::Transact {
            via: via(random),
            which,
            stale: random.chance(20),
            share: random.below(101),
            proof: random.pick(&[Proof::Lease, Proof::Required, Proof::Nothing]),
            poison: random.chance(15),
            items: items(random, serial, 4, false),
        },
        96..97 => Step::Seek { to_end: random.chance(40) },
        _ => Step::Rest(millis(random, 1, 150)),
    }
}

fn pop(random: &mut Random) -> Pop {
    const GROUPS: [Group; 8] = [
        Group::Queue,
        Group::Queue,
        Group::Billing,
        Group::Billing,
        Group::Billing,
        Group::Wander,
        Group::Auto,
        Group::Far,
    ];
    let group = random.pick(&GROUPS);
    let drawn = via(random);
    Pop {
        via: match group {
            Group::Auto => Via::Healthy,
            Group::Far => Via::Broken,
            _ => drawn,
        },
        group,
        partition: random.chance(35).then(|| random.below(PARTITIONS as u64) as Partition),
        partitions: random.pick(&[1, 1, 2, 4]),
        batch: random.between(1, 20) as u32,
        lease_seconds: random.between(0, LEASE_SECONDS_MAX as u64) as i32,
        wait: random.chance(40).then(|| millis(random, 10, 200)),
        hang_up: hang_up(random).filter(|_| group != Group::Auto),
    }
}

fn items(random: &mut Random, serial: Serial, most: u64, repeats: bool) -> Vec<Item> {
    let count = random.between(1, most);
    let item = |index| Item {
        partition: random.below(PARTITIONS as u64) as Partition,
        serial: serial + index,
        transaction: match random.below(10) {
            0..3 => Transaction::Minted,
            3..6 if repeats => Transaction::Repeated(random.below(60)),
            _ => Transaction::Fresh,
        },
    };
    (0..count).map(item).collect()
}

fn via(random: &mut Random) -> Via {
    random.pick(&[Via::Healthy, Via::Broken])
}

fn hang_up(random: &mut Random) -> Option<Duration> {
    random.chance(4).then(|| millis(random, 0, 15))
}

fn millis(random: &mut Random, first: u64, last: u64) -> Duration {
    Duration::from_millis(random.between(first, last))
}
