//! Ctrl-C, SIGTERM and SIGHUP (its terminal was closed) for commands that have something to put in order before they end. Others
//! simply die of them.

use std::fs;
use std::future::pending;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub struct Interrupt {
    terminate: Signal,
    interrupt: Signal,
    /// `None`: whoever started us wants them ignored, as `nohup` does.
    hangup: Option<Signal>,
}

impl Interrupt {
    /// From now on none of them ends the process by itself.
    pub fn listen() -> io::Result<Self> {
        let hangup = SignalKind::hangup();
        // Where there is no such file nobody can tell.
        let ignored = fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(&status, hangup));
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: if ignored { None } else { Some(signal(hangup)?) },
        })
    }

    /// # Cancel safety
    /// A signal that came meanwhile is seen the next time.
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

    /// Does something for as long as nobody interrupts it. `None`: somebody has.
    pub async fn or<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }
}

/// By `SigIgn` in the kernel's account of a process, in which each signal has a bit.
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
