//! Ctrl-C, SIGTERM and SIGHUP (terminal closed), for commands that have to clean up before they exit. They end other commands
//! at once.

use std::fs;
use std::future::pending;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub struct Interrupt {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if the signal is ignored, as under `nohup`.
    hangup: Option<Signal>,
}

impl Interrupt {
    /// From here on, none of these signals ends the process by itself.
    pub fn listen() -> io::Result<Self> {
        let hangup = SignalKind::hangup();
        // Unknown on systems without this file.
        let ignored = fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(&status, hangup));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: if ignored { None } else { Some(signal(hangup)?) },
        })
    }

    /// # Cancel safety
    /// A signal that arrives between calls is seen by the next one.
    pub async fn next(&mut self) {
        let Self { terminate, interrupt, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup => {}
        }
    }

    /// Runs a future until it completes or a signal arrives; `None` after a signal.
    pub async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }
}

/// Reads the `SigIgn` mask in `/proc/self/status`, which has one bit per signal.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| (bits >> (signal.as_raw_value() - 1)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_account_of_the_process() {
        let status =
            |bits: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{bits}\nSigCgt:\t0000000000000001\n");
        assert!(is_ignored(&status("0000000000001001"), SignalKind::hangup()));
        assert!(!is_ignored(&status("0000000000001002"), SignalKind::hangup()));
        assert!(is_ignored(&status("0000000000000002"), SignalKind::interrupt()));
        assert!(!is_ignored("Name:\tqueen\n", SignalKind::hangup()));
    }
}
