//! Assigns connections: to callers that need one alone, and to flights that share one as a convoy. It knows how many
//! connections there are, and nothing of what they are.
//!
//! The database spends a quarter of a millisecond on a flight before it looks at the first item, most of it waiting
//! for the disk and for the next message to arrive. So flights of different lanes leave as a convoy: one after the
//! other on one connection, without a pause in between, while everything that arrives meanwhile collects for the next
//! convoy. With `flights` in the air the next one waits, but not for long: one slow flight must not hold up the
//! others.

use std::collections::VecDeque;

use tokio::sync::oneshot::{self, Receiver, Sender};

/// Flights that wait for a convoy. Beyond that, those whose callers have stopped waiting are dropped.
const WAITING_FLIGHTS: usize = 64;

/// Which flights go first: those that finish work before those that start more, and those that may take long last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    Consume,
    Push,
    Fetch,
}

/// `C` is a connection, `T` what a caller receives.
pub struct Schedule<C, T> {
    size: usize,
    flights: usize,
    waiting_max: usize,
    idle: Vec<C>,
    /// Including those in use and those being opened.
    open: usize,
    airborne: usize,
    /// Flights that wait for the next convoy, by priority.
    waiting: [VecDeque<Sender<T>>; 3],
    /// Callers that get the next connection to themselves: they waited too long, or need one of their own.
    alone: VecDeque<Sender<T>>,
}

pub enum Place<C, T> {
    Idle(Box<C>),
    /// To be opened. It is counted already.
    New,
    Wait(Receiver<T>),
}

/// Where a connection goes next.
pub enum Next<C, T> {
    Alone(Sender<T>, C),
    /// These flights are already counted as in the air.
    Convoy(Vec<Sender<T>>, C),
    /// It is idle.
    Idle,
}

impl<C, T> Schedule<C, T> {
    /// At most `size` connections, `flights` in the air, and `waiting_max` callers that wait for a connection of their own.
    pub fn new(size: usize, flights: usize, waiting_max: usize) -> Self {
        Self {
            size,
            flights,
            waiting_max,
            idle: Vec::new(),
            open: 0,
            airborne: 0,
            waiting: Default::default(),
            alone: VecDeque::new(),
        }
    }

    /// For a flight. With an idle connection it is in the air at once, with a new one after [`Self::took_off`].
    pub fn join(&mut self, priority: Priority, is_usable: impl Fn(&C) -> bool) -> Place<C, T> {
        let free = if self.airborne < self.flights { self.take(is_usable) } else { None };
        if matches!(free, Some(Place::Idle(_))) {
            self.airborne += 1;
        }
        free.unwrap_or_else(|| {
            let (sender, receiver) = oneshot::channel();
            let waiting = &mut self.waiting[priority as usize];
            if waiting.len() >= WAITING_FLIGHTS {
                waiting.retain(|flight| !flight.is_closed());
            }
            waiting.push_back(sender);
            Place::Wait(receiver)
        })
    }

    /// For a caller that needs a connection of its own. `None`: too many wait for one already.
    pub fn acquire(&mut self, is_usable: impl Fn(&C) -> bool) -> Option<Place<C, T>> {
        if let Some(free) = self.take(is_usable) {
            return Some(free);
        }
        if self.alone.len() >= self.waiting_max {
            self.alone.retain(|waiter| !waiter.is_closed());
        }
        if self.alone.len() >= self.waiting_max {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.alone.push_back(sender);
        Some(Place::Wait(receiver))
    }

    /// A connection, or the right to open one.
    fn take(&mut self, is_usable: impl Fn(&C) -> bool) -> Option<Place<C, T>> {
        while let Some(connection) = self.idle.pop() {
            if is_usable(&connection) {
                return Some(Place::Idle(Box::new(connection)));
            }
            self.open -= 1;
        }
        let free = self.open < self.size;
        self.open += usize::from(free);
        free.then_some(Place::New)
    }

    pub fn took_off(&mut self) {
        self.airborne += 1;
    }

    pub fn landed(&mut self) {
        self.airborne -= 1;
    }

    /// Passes on a connection that has come back usable.
    pub fn hand_on(&mut self, connection: C) -> Next<C, T> {
        if let Some(waiter) = self.alone.pop_front() {
            return Next::Alone(waiter, connection);
        }
        let crowded = self.airborne >= self.flights;
        let waiting = self.waiting.iter_mut().filter(|_| !crowded);
        let convoy: Vec<_> = waiting.flat_map(|queue| queue.drain(..)).collect();
        if convoy.is_empty() {
            self.idle.push(connection);
            return Next::Idle;
        }
        self.airborne += convoy.len();
        Next::Convoy(convoy, connection)
    }

    /// There is one connection less. Every waiter tries for the place: the first opens a connection or reports why it
    /// cannot.
    pub fn free_place(&mut self) {
        self.open -= 1;
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.alone.clear();
    }

    pub fn drop_idle(&mut self) {
        self.open -= self.idle.len();
        self.idle.clear();
    }

    pub fn busy(&self) -> usize {
        self.open - self.idle.len()
    }

    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.iter().flatten().chain(&self.alone);
        waiting.filter(|waiter| !waiter.is_closed()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(_: &u32) -> bool {
        true
    }

    fn waits(place: impl Into<Option<Place<u32, u32>>>) -> Receiver<u32> {
        match place.into() {
            Some(Place::Wait(receiver)) => receiver,
            _ => panic!("it should wait"),
        }
    }

    #[test]
    fn there_are_never_more_connections_than_allowed() {
        let mut schedule = Schedule::<u32, u32>::new(2, 8, 8);
        assert!(matches!(schedule.acquire(usable), Some(Place::New)));
        assert!(matches!(schedule.join(Priority::Push, usable), Place::New));
        let _waiter = waits(schedule.acquire(usable));
        let _flight = waits(schedule.join(Priority::Push, usable));
        assert_eq!((schedule.busy(), schedule.waiting()), (2, 2));
        schedule.free_place();
        assert_eq!((schedule.busy(), schedule.waiting()), (1, 0), "all waiters try for the place");
        assert!(matches!(schedule.acquire(usable), Some(Place::New)));
    }

    #[test]
    fn an_idle_connection_that_is_of_no_use_makes_room_for_a_new_one() {
        let mut schedule = Schedule::<u32, u32>::new(1, 8, 8);
        assert!(matches!(schedule.acquire(usable), Some(Place::New)));
        assert!(matches!(schedule.hand_on(7), Next::Idle));
        assert!(matches!(schedule.acquire(|_| false), Some(Place::New)));
        assert_eq!(schedule.busy(), 1);
    }

    #[test]
    fn flights_leave_together_by_priority_once_there_is_room_in_the_air() {
        let mut schedule = Schedule::<u32, u32>::new(4, 1, 8);
        assert!(matches!(schedule.join(Priority::Fetch, usable), Place::New));
        schedule.took_off();
        let mut fetch = waits(schedule.join(Priority::Fetch, usable));
        let mut consumer = waits(schedule.join(Priority::Consume, usable));
        assert!(matches!(schedule.hand_on(1), Next::Idle), "the first is still in the air");
        schedule.landed();
        assert!(matches!(schedule.acquire(usable), Some(Place::Idle(_))));
        let Next::Convoy(convoy, _) = schedule.hand_on(1) else { panic!("a convoy") };
        convoy.into_iter().zip([10, 20]).for_each(|(flight, order)| flight.send(order).unwrap());
        assert_eq!((consumer.try_recv(), fetch.try_recv()), (Ok(10), Ok(20)));
        let _next = waits(schedule.join(Priority::Consume, usable));
        assert_eq!(schedule.busy(), 1);
    }

    #[test]
    fn a_caller_that_needs_its_own_goes_before_a_convoy_and_is_refused_behind_too_many() {
        let mut schedule = Schedule::<u32, u32>::new(1, 1, 2);
        assert!(matches!(schedule.acquire(usable), Some(Place::New)));
        let _flight = waits(schedule.join(Priority::Consume, usable));
        let gone = waits(schedule.acquire(usable));
        let _waiter = waits(schedule.acquire(usable));
        assert!(schedule.acquire(usable).is_none());
        drop(gone);
        let _room = waits(schedule.acquire(usable));
        assert!(matches!(schedule.hand_on(1), Next::Alone(..)));
        assert!(matches!(schedule.hand_on(1), Next::Alone(..)));
        assert!(matches!(schedule.hand_on(1), Next::Convoy(..)));
    }
}
