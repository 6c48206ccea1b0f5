//! A request with all its attempts: choice of broker, deadlines and retries.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use tokio::time::{Instant, sleep};

use crate::brokers::Route;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::http::Answer;
use crate::queen::Shared;
use crate::retry::{Policy, chance};

/// The body is serialized once, with all ids, so that every attempt sends the same bytes.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    /// Path with query.
    pub path: String,
    pub body: Bytes,
    pub route: Route,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Time limit of the call.
    pub deadline: Duration,
    /// Executing it twice would do harm, so it is not retried after an attempt that may have been executed.
    pub once: bool,
}

#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub body: Bytes,
    /// The broker that responded.
    pub broker: usize,
    pub attempts: u32,
    /// An earlier attempt may have been executed too.
    pub uncertain: bool,
}

impl Shared {
    /// Sends a call of a verb, which fails once the client is closed.
    pub async fn call(&self, call: Call) -> Result<Answered, Error> {
        self.check_open()?;
        self.call_anyway(call).await
    }

    /// Sends a call of work that was started before the client was closed, and continues.
    pub async fn call_anyway(&self, call: Call) -> Result<Answered, Error> {
        let mut trial = Trial::new(self, self.policy, call.route, Some(call.deadline));
        trial.once = call.once;
        loop {
            let broker = trial.begin();
            let patience = trial.patience(call.timeout);
            match self.ask(broker, &call.method, &call.path, &call.body, patience).await {
                Ok(answer) => return Ok(trial.answered(broker, answer)),
                Err(error) => {
                    // A timeout cut short by the deadline says nothing about the broker.
                    let cut = error.kind() == ErrorKind::Timeout && patience < call.timeout;
                    let pause = trial.failed(broker, error, cut)?;
                    if !pause.is_zero() {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    /// One attempt.
    pub async fn ask(
        &self,
        broker: usize,
        method: &Method,
        path: &str,
        body: &Bytes,
        patience: Duration,
    ) -> Result<Answer, Error> {
        self.transport.send(&self.bases[broker], method.clone(), path, body.clone(), patience).await
    }
}

/// The attempts of a request so far.
pub struct Trial<'a> {
    shared: &'a Shared,
    policy: Policy,
    route: Route,
    /// `None`: no deadline.
    until: Option<Instant>,
    once: bool,
    attempts: u32,
    pauses: u32,
    /// Brokers tried since the last pause.
    hops: usize,
    /// Brokers with a permanent problem, such as an untrusted certificate.
    hopeless: Vec<usize>,
    uncertain: bool,
    /// The previous error.
    last: Option<Error>,
}

impl<'a> Trial<'a> {
    pub fn new(shared: &'a Shared, policy: Policy, route: Route, deadline: Option<Duration>) -> Self {
        let until = deadline.map(|deadline| clock::after(clock::now(), deadline));
        Self {
            shared,
            policy,
            route,
            until,
            once: false,
            attempts: 0,
            pauses: 0,
            hops: 0,
            hopeless: Vec::new(),
            uncertain: false,
            last: None,
        }
    }

    /// Starts an attempt at this broker.
    pub fn begin(&mut self) -> usize {
        self.attempts += 1;
        self.shared.brokers().choose(self.route, clock::now())
    }

    fn patience(&self, timeout: Duration) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(clock::now()));
        left.map_or(timeout, |left| left.min(timeout))
    }

    pub fn answered(&self, broker: usize, answer: Answer) -> Answered {
        self.shared.brokers().worked(broker);
        self.shared.outages.answered(broker);
        let Answer { status, body } = answer;
        Answered { status, body, broker, attempts: self.attempts, uncertain: self.uncertain }
    }

    /// The pause before the next attempt, or the final error. `cut`: the attempt had less than its usual time.
    pub fn failed(&mut self, broker: usize, error: Error, cut: bool) -> Result<Duration, Error> {
        let now = clock::now();
        self.shared.outages.failed(broker, &error, cut);
        self.uncertain |= error.may_have_happened();
        let away = match error.kind() {
            _ if error.is_ours() => false,
            ErrorKind::Network | ErrorKind::Unavailable => true,
            ErrorKind::Timeout => !cut,
            _ => false,
        };
        let others = {
            let mut brokers = self.shared.brokers();
            if away {
                brokers.failed(broker, now);
            } else if error.status().is_some() {
                brokers.worked(broker);
            }
            brokers.is_any_well(now)
        };
        // A 503 almost always means that nothing was executed, and starting brokers send it often.
        if self.once && error.may_have_happened() && error.kind() != ErrorKind::Unavailable {
            return Err(self.ended(error.into_unknown()));
        }
        if !self.may_pass(broker, &error) {
            return Err(self.ended(error));
        }
        // All brokers were tried, so the problem is not limited to one of them.
        let pause = if away && others && self.hops + 1 < self.shared.bases.len() {
            self.hops += 1;
            Duration::ZERO
        } else {
            self.hops = 0;
            self.pauses += 1;
            self.policy.delay(self.pauses - 1, error.retry_after(), chance())
        };
        if self.until.is_some_and(|until| until <= clock::after(now, pause)) {
            // The previous error is more useful than a timeout.
            let before = self.last.take().filter(|_| cut);
            return Err(self.ended(before.unwrap_or(error)));
        }
        self.last = Some(error);
        Ok(pause)
    }

    /// Whether another attempt makes sense. When some brokers have an untrusted certificate, another may still work.
    fn may_pass(&mut self, broker: usize, error: &Error) -> bool {
        self.hopeless.retain(|&other| other != broker);
        if !error.is_hopeless() {
            return self.policy.retries(error);
        }
        self.hopeless.push(broker);
        self.hopeless.len() < self.shared.bases.len()
    }

    /// Adds what is known about the attempts.
    pub fn ended(&self, error: Error) -> Error {
        error.tried(self.attempts, self.uncertain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queen;

    fn queen() -> Queen {
        Queen::builder().urls(["http://a", "http://b"]).build().unwrap()
    }

    fn trial(queen: &Queen) -> Trial<'_> {
        Trial::new(&queen.shared, queen.shared.policy, Route::First, Some(Duration::from_secs(60)))
    }

    fn unavailable(retry_after: u64) -> Error {
        Error::answered(503, "", None, Some(Duration::from_secs(retry_after)))
    }

    #[tokio::test]
    async fn who_was_at_all_brokers_waits_before_the_next_round_whatever_others_find_there() {
        let queen = queen();
        let mut trial = trial(&queen);
        for _ in 0..3 {
            let (first, pause) = (trial.begin(), trial.failed(0, unavailable(7), false).unwrap());
            assert_eq!((first, pause), (0, Duration::ZERO), "the other one is asked at once");
            // Other pops still work there.
            queen.shared.brokers().worked(0);
            trial.begin();
            assert_eq!(trial.failed(1, unavailable(7), false).unwrap(), Duration::from_secs(7));
            queen.shared.brokers().worked(1);
        }
    }

    #[tokio::test]
    async fn untrusted_brokers_fail_a_call_only_if_all_are_untrusted() {
        let queen = queen();
        let hopeless = || Error::new(ErrorKind::Network, "not who it says it is").unsent().hopeless();
        let mut one = trial(&queen);
        one.begin();
        assert_eq!(one.failed(0, hopeless(), false).unwrap(), Duration::ZERO);
        assert_eq!(one.begin(), 1);
        assert!(one.failed(1, Error::new(ErrorKind::Network, "away"), false).is_ok());
        assert!(one.failed(0, hopeless(), false).is_ok(), "the other one may come back");
        let error = one.failed(1, hopeless(), false).unwrap_err();
        assert_eq!((error.kind(), error.text()), (ErrorKind::Network, "not who it says it is"));
        let alone = Queen::connect("http://a").unwrap();
        assert!(trial(&alone).failed(0, hopeless(), false).is_err());
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_had_is_no_fault_of_the_broker_and_passes() {
        let queen = queen();
        let mut trial = trial(&queen);
        let error = Error::new(ErrorKind::Network, "the vault is closed").unsent().ours();
        let broker = trial.begin();
        assert!(trial.failed(broker, error, false).is_ok());
        assert_eq!(trial.begin(), broker, "it is not left for another one");
        assert!(!trial.uncertain);
    }

    #[tokio::test]
    async fn what_would_do_harm_twice_is_tried_again_only_if_it_was_not_done() {
        let queen = queen();
        let failed = |error: Error| {
            let mut trial = trial(&queen);
            trial.once = true;
            trial.begin();
            trial.failed(0, error, false).map_err(|error| (error.kind(), error.attempts()))
        };
        for error in [
            Error::answered(429, "", None, None),
            unavailable(0),
            Error::new(ErrorKind::Network, "refused").unsent(),
        ] {
            assert!(failed(error).is_ok());
        }
        for error in [
            Error::new(ErrorKind::Network, "reset"),
            Error::new(ErrorKind::Timeout, ""),
            Error::answered(500, "", None, None),
        ] {
            assert_eq!(failed(error), Err((ErrorKind::OutcomeUnknown, 1)));
        }
        assert_eq!(failed(Error::answered(400, "", None, None)), Err((ErrorKind::BadRequest, 1)));
    }

    #[tokio::test]
    async fn an_error_tells_whether_any_of_its_attempts_may_have_been_carried_out() {
        let queen = queen();
        let ended = |first: Error| {
            let mut trial = trial(&queen);
            trial.failed(0, first, false).unwrap();
            trial.failed(0, Error::answered(403, "", None, None), false).unwrap_err().is_uncertain()
        };
        assert!(ended(Error::new(ErrorKind::Network, "reset")) && ended(unavailable(0)));
        assert!(!ended(Error::answered(429, "", None, None)));
        assert!(!ended(Error::new(ErrorKind::Network, "refused").unsent()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_the_deadline_has_cut_off_does_not_hide_what_went_wrong() {
        let queen = queen();
        let mut trial = trial(&queen);
        let late = || Error::new(ErrorKind::Timeout, "no answer in 1 ms");
        trial.failed(0, unavailable(1), false).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(trial.failed(0, late(), true).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(trial.failed(0, late(), true).unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[tokio::test]
    async fn a_deadline_may_be_for_ever() {
        let queen = queen();
        let mut trial = Trial::new(&queen.shared, queen.shared.policy, Route::First, Some(Duration::MAX));
        assert!(trial.failed(0, Error::answered(429, "", None, Some(Duration::MAX)), false).is_ok());
    }
}
