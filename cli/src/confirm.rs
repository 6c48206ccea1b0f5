//! What cannot be undone is asked for twice: on a terminal by its name, elsewhere by a flag.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::Result;
use clap::Args;

use super::exit::{Exit, Refused};

#[derive(Debug, Clone, Copy, Args)]
pub struct Confirm {
    /// Does not ask.
    #[arg(long, short = 'y')]
    pub yes: bool,
}

impl Confirm {
    /// `what` is about to happen to something called `name`.
    pub fn ask(self, what: &str, name: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Refused::usage(format!("{what}: this cannot be undone, say --yes if you mean it")));
        }
        typed(&mut io::stdin().lock(), &mut io::stderr(), what, name)
    }
}

fn typed(input: &mut impl BufRead, out: &mut impl Write, what: &str, name: &str) -> Result<()> {
    write!(out, "{what}. This cannot be undone.\nType the name to go on: ")?;
    out.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    match line.trim_end_matches(['\r', '\n']) == name {
        true => Ok(()),
        false => Err(Refused::error(Exit::Failed, "that is another name; nothing was done")),
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
            assert!(String::from_utf8(asked).unwrap().starts_with("deletes the queue orders."));
            answer.is_ok()
        };
        assert!(answer("orders\n") && answer("orders"));
        for no in ["", "\n", "y\n", "order\n", "orders \n", "ORDERS\n"] {
            assert!(!answer(no), "{no:?}");
        }
    }
}
