//! Confirmation of what cannot be undone: by typing the name at a terminal, by a flag elsewhere.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use clap::Args;

use super::exit::{Exit, Refused};

#[derive(Debug, Clone, Copy, Args)]
pub struct Confirm {
    /// Do not ask for confirmation.
    #[arg(long, short = 'y')]
    pub yes: bool,
}

impl Confirm {
    /// `what` says what will happen, `name` what to type.
    pub fn ask(self, what: &str, name: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Refused::usage(format!("this {what} and cannot be undone; confirm with --yes")));
        }
        typed(&mut io::stdin().lock(), &mut io::stderr(), what, name)
    }
}

fn typed(input: &mut impl BufRead, out: &mut impl Write, what: &str, name: &str) -> Result<()> {
    write!(out, "This {what} and cannot be undone.\nType {name} to confirm: ")?;
    out.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    match line.trim_end_matches(['\r', '\n']) == name {
        true => Ok(()),
        false => Err(Refused::error(Exit::Failed, "the name does not match; nothing was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_name_is_a_yes() {
        let answer = |text: &str| {
            let mut asked = Vec::new();
            let answer = typed(&mut text.as_bytes(), &mut asked, "deletes the queue orders", "orders");
            assert!(String::from_utf8(asked).unwrap().starts_with("This deletes the queue orders and"));
            answer.is_ok()
        };
        assert!(answer("orders\n") && answer("orders"));
        for no in ["", "\n", "y\n", "order\n", "orders \n", "ORDERS\n"] {
            assert!(!answer(no), "{no:?}");
        }
    }
}
